//! A reduce-scatter in two levels, as large machines do it: first within groups of neighbours, whose links are
//! fast, then across the groups, with what is left of the data.
//!
//! Groups are contiguous ranks, so the second level is a second communicator over the same devices and
//! streams, in the order that makes neighbours of the ranks that meet across:
//!
//! ```text
//! level 1, groups of 4:   0 1 2 3 | 4 5 6 7          rank 4g + i gets part i of 4 of its group's sum
//! level 2, groups of 2:   0 4 | 1 5 | 2 6 | 3 7      and of that part g of 2, summed over the groups
//! ```
//!
//! The contract's order is rank order within a group: in two levels (r0 + r1 + r2 + r3) + (r4 + r5 + r6 + r7),
//! in one r0 + r1 + ... + r7. Both are compared with that plain sum bit for bit. With floats they are two
//! sums, and the example says how often; with integers they must be one.
//!
//! ```sh
//! cargo run --release --example two_level_reduce_scatter
//! ```

#![cfg_attr(not(feature = "cpu"), allow(dead_code))]

mod support;

use crossccl::{Backend, Buffer, Communicator, Element, ReduceOp, ReduceScatter, half::bf16};
use support::{Outcome, check, example};

const GROUPS: usize = 2;
const GROUP_SIZE: usize = 4;
const RANKS: usize = GROUPS * GROUP_SIZE;
/// The rows are cut, and not evenly: some parts have a row more.
const ROWS: usize = 37;
const COLUMNS: usize = 5;
const COUNT: usize = ROWS * COLUMNS;

example!(run);

fn run<B: Backend>(_: &[String]) -> Outcome {
    let inside = Communicator::<B>::builder(0..RANKS).build()?;
    // Position GROUPS * i + g of `across` is rank GROUP_SIZE * g + i.
    let order: Vec<usize> = (0..RANKS).map(|at| GROUP_SIZE * (at % GROUPS) + at / GROUPS).collect();
    // The streams of the first: what level 1 wrote into a buffer, level 2 reads after it.
    let streams: Vec<B::Stream> = order.iter().filter_map(|rank| inside.stream(*rank).cloned()).collect();
    let across = Communicator::<B>::builder(order.iter().copied()).streams(streams).build()?;
    let levels = Levels { inside, across, order };

    levels.compare::<f32>()?;
    levels.compare::<bf16>()?;
    let same = levels.compare::<i32>()?;
    check(same == COUNT, || format!("integers have one sum, but {} of {COUNT} differ", COUNT - same))
}

struct Levels<B: Backend> {
    inside: Communicator<B>,
    across: Communicator<B>,
    /// The rank at each position of `across`.
    order: Vec<usize>,
}

impl<B: Backend> Levels<B> {
    /// Checks both ways, and tells how many elements they have in common.
    fn compare<T: Value>(&self) -> Result<usize, Box<dyn std::error::Error>> {
        let number = |rank: usize, i: usize| (rank * 7919 + i * 104_729) as i32 % 100_003 - 50_000;
        let inputs: Vec<Vec<T>> =
            (0..RANKS).map(|rank| (0..COUNT).map(|i| T::new(number(rank, i))).collect()).collect();
        let groups: Vec<Vec<T>> = inputs.chunks(GROUP_SIZE).map(plain_sum).collect();

        let two = self.in_two_levels(&inputs)?;
        let right = in_common(&two, &plain_sum(&groups));
        check(right == COUNT, || format!("{} of {COUNT} sums of {} in two levels are wrong", COUNT - right, T::DTYPE))?;
        let one = self.in_one_level(&inputs)?;
        let right = in_common(&one, &plain_sum(&inputs));
        check(right == COUNT, || format!("{} of {COUNT} sums of {} in one level are wrong", COUNT - right, T::DTYPE))?;

        let same = in_common(&one, &two);
        println!(
            "{}: {COUNT} sums over {RANKS} ranks, right to the bit in two levels and in one; {same} are the same",
            T::DTYPE
        );
        Ok(same)
    }

    fn in_two_levels<T: Value>(&self, inputs: &[Vec<T>]) -> crossccl::Result<Vec<T>> {
        let first = ReduceScatter::new(ReduceOp::Sum).shape([ROWS, COLUMNS]).group_size(GROUP_SIZE);
        // What rank r holds after level 1: the same rows as the ranks that it meets in level 2.
        let rows = |rank: usize| Ok(self.inside.part(rank, COUNT, first.clone())?.count() as usize / COLUMNS);
        let rows: Vec<usize> = (0..RANKS).map(rows).collect::<crossccl::Result<_>>()?;
        let shapes = self.order.chunks(GROUPS).map(|group| [rows[group[0]], COLUMNS]);
        let second = ReduceScatter::new(ReduceOp::Sum).group_shapes(shapes).group_size(GROUPS);

        let sources = buffers(&self.inside, inputs)?;
        let mut middle = (rows.iter().enumerate())
            .map(|(rank, rows)| self.inside.buffer(rank, rows * COLUMNS))
            .collect::<crossccl::Result<Vec<Buffer<B, T>>>>()?;
        self.inside.reduce_scatter(&sources, &mut middle, first)?.wait()?;

        let middle = self.order.iter().map(|rank| &middle[*rank]);
        let mut outputs = (middle.clone().enumerate())
            .map(|(at, part)| {
                let mine = self.across.part(at, part.len(), second.clone())?;
                self.across.buffer(at, mine.count() as usize)
            })
            .collect::<crossccl::Result<Vec<Buffer<B, T>>>>()?;
        self.across.reduce_scatter(middle, &mut outputs, second)?.wait()?;
        // In the order of `across`, the parts stand as in the tensor: part i of 4, and of it part g of 2.
        gather(&outputs)
    }

    fn in_one_level<T: Value>(&self, inputs: &[Vec<T>]) -> crossccl::Result<Vec<T>> {
        let what = ReduceScatter::new(ReduceOp::Sum).shape([ROWS, COLUMNS]);
        let sources = buffers(&self.inside, inputs)?;
        let mut outputs = (0..RANKS)
            .map(|rank| {
                let mine = self.inside.part(rank, COUNT, what.clone())?;
                self.inside.buffer(rank, mine.count() as usize)
            })
            .collect::<crossccl::Result<Vec<Buffer<B, T>>>>()?;
        self.inside.reduce_scatter(&sources, &mut outputs, what)?.wait()?;
        gather(&outputs)
    }
}

fn buffers<B: Backend, T: Value>(comm: &Communicator<B>, inputs: &[Vec<T>]) -> crossccl::Result<Vec<Buffer<B, T>>> {
    inputs.iter().enumerate().map(|(rank, input)| comm.buffer_from(rank, input)).collect()
}

fn gather<B: Backend, T: Value>(parts: &[Buffer<B, T>]) -> crossccl::Result<Vec<T>> {
    Ok(parts.iter().map(Buffer::to_vec).collect::<crossccl::Result<Vec<_>>>()?.concat())
}

/// The sum by the contract, one element after the other.
fn plain_sum<T: Value>(terms: &[Vec<T>]) -> Vec<T> {
    (0..terms[0].len()).map(|i| T::sum(terms.iter().map(|term| term[i]))).collect()
}

fn in_common<T: Value>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a.bits() == b.bits()).count()
}

trait Value: Element {
    fn new(number: i32) -> Self;
    /// In the order given, in the type that the contract accumulates in, rounded once.
    fn sum(terms: impl Iterator<Item = Self>) -> Self;
    fn bits(self) -> u32;
}

/// Thirds, so that nearly every addition rounds.
impl Value for f32 {
    fn new(number: i32) -> f32 {
        number as f32 / 3.0
    }
    fn sum(terms: impl Iterator<Item = f32>) -> f32 {
        terms.reduce(|a, b| a + b).unwrap_or(0.0)
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Value for bf16 {
    fn new(number: i32) -> bf16 {
        bf16::from_f32(f32::new(number))
    }
    fn sum(terms: impl Iterator<Item = bf16>) -> bf16 {
        bf16::from_f32(Value::sum(terms.map(f32::from)))
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Value for i32 {
    fn new(number: i32) -> i32 {
        number
    }
    fn sum(terms: impl Iterator<Item = i32>) -> i32 {
        terms.fold(0, i32::wrapping_add)
    }
    fn bits(self) -> u32 {
        self as u32
    }
}
