//! Random programs: what the ranks of a communicator do one after the other, made from a number, and what must come
//! out. `suite/programs.rs` runs them.
//!
//! Each step is made from a number of its own, so that a program stays the same where others are left out.

use std::ops::Range;

use crossccl::{Algorithm, Broadcast, DType, Overlap, ReduceOp, ReduceScatter};

use super::{Random, oracle};

/// The most operations of a program.
pub(crate) const MOST: usize = 200;

/// A communicator's life.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) ranks: usize,
    /// One thread drives all ranks; else each has its own.
    pub(crate) together: bool,
    pub(crate) strict: bool,
    pub(crate) payload: usize,
    /// Buffers of coherent memory, which the direct broadcast takes.
    pub(crate) coherent: bool,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
}

/// What is done, and then looked at.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Calls that are enqueued one after the other before the first is waited for.
    Calls(Vec<Call>),
    /// In place, on one buffer a rank, each call working on what the one before left.
    Chain(Chain),
    /// A call that would be right, and the same with a mistake: refused before anything happens.
    Refused(Call, Call, Mistake),
    /// A rank does not come. What the others enqueue behind the call, before they wait for it.
    Missing(Call, usize, Vec<Call>),
    /// A rank does not come, nobody has a limit, and somebody aborts after so many microseconds. The same.
    Aborted(Call, usize, u64, Vec<Call>),
    /// A rank calls something else. The field that differs; what all enqueue behind it.
    Disagree(Call, usize, Call, &'static str, Vec<Call>),
    /// All ranks come, and the limit is so many microseconds.
    Hurried(Call, u64),
    /// Every rank but one asks for a reset that nobody needs.
    ResetWithout(usize),
}

/// How the communicator goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Idle,
    /// With calls in flight that nobody waits for.
    InFlight,
    /// The same, aborted.
    Aborted,
}

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mistake {
    Root,
    Blocks,
    Limit,
    Group,
    Axis,
    Lengths,
    Output,
    Epilogue,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Residual {
    None,
    Separate,
    Output,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Broadcast {
        root: usize,
        count: usize,
        algorithm: Algorithm,
    },
    ReduceScatter {
        op: ReduceOp,
        group: usize,
        axis: usize,
        /// Of each group.
        shapes: Vec<Vec<usize>>,
        /// Of each group; none for an even split.
        lengths: Vec<Vec<usize>>,
        to: DType,
        factor: f64,
        residual: Residual,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) what: What,
    pub(crate) dtype: DType,
    /// Elements by which input, output and residual miss a vector's boundary.
    pub(crate) offsets: [usize; 3],
    pub(crate) blocks: Option<u32>,
    pub(crate) overlap: Overlap,
    pub(crate) in_place: bool,
    /// A rank that comes so many microseconds late.
    pub(crate) late: Option<(usize, u64)>,
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    Broadcast { root: usize, algorithm: Algorithm },
    ReduceScatter { op: ReduceOp, group: usize },
}

#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    pub(crate) offset: usize,
    pub(crate) links: Vec<(Link, Option<u32>)>,
    pub(crate) times: usize,
    /// Recorded and replayed; else by address. One handle a rank has the latter only.
    pub(crate) recorded: bool,
    pub(crate) seed: u64,
}

/// The bytes of a call, one entry a rank.
pub(crate) struct Data {
    pub(crate) inputs: Vec<Vec<u8>>,
    pub(crate) residuals: Vec<Vec<u8>>,
    /// What the outputs hold in the end: in place, all of the buffer.
    pub(crate) expected: Vec<Vec<u8>>,
    pub(crate) to: DType,
}

impl Program {
    pub(crate) fn new(seed: u64) -> Self {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ranks = random.pick([1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8]);
        let together = random.one_in(2);
        let strict = random.one_in(3);
        let payload = random.pick([0, 64, 1 << 10, 1 << 12, 1 << 16]);
        let coherent = random.one_in(3);
        let mut steps: Vec<Step> = Vec::new();
        let wanted = 1 + random.below(MOST);
        for number in 0.. {
            let made = Step::new(&mut Random(seed.rotate_left(32) ^ number), ranks, together, payload > 0);
            if steps.iter().map(Step::operations).sum::<usize>() + made.operations() > wanted {
                break;
            }
            steps.push(made);
        }
        let end = random.pick([End::Idle, End::InFlight, End::Aborted]);
        Program { seed, ranks, together, strict, payload, coherent, steps, end }
    }
}

impl Step {
    fn new(random: &mut Random, ranks: usize, together: bool, staged: bool) -> Self {
        let call = |random: &mut Random| Call::new(random, ranks);
        // A rank alone has nobody to miss.
        match (ranks, together, random.below(100)) {
            (2.., true, 0..6) => Step::Hurried(call(random), 20 + random.below(200) as u64),
            (2.., false, 0..3) => {
                Step::Missing(call(random).of_peers(random, ranks), random.below(ranks), queued(random, ranks))
            }
            (2.., false, 3..5) => {
                let after = random.below(3000) as u64;
                let call = call(random).of_peers(random, ranks);
                Step::Aborted(call, random.below(ranks), after, queued(random, ranks))
            }
            (2.., false, 5..9) => disagreement(random, ranks, staged),
            (2.., false, 9..11) => Step::ResetWithout(random.below(ranks)),
            (_, _, 11..17) => mistake(random, ranks),
            (_, _, 17..30) => Step::Chain(Chain::new(random, ranks)),
            _ => Step::Calls((0..1 + random.below(4)).map(|_| call(random)).collect()),
        }
    }

    /// Collectives, each of all ranks.
    pub(crate) fn operations(&self) -> usize {
        match self {
            Step::Calls(calls) => calls.len(),
            Step::Chain(chain) => chain.links.len() * chain.times,
            Step::Missing(.., queued) | Step::Aborted(.., queued) | Step::Disagree(.., queued) => 1 + queued.len(),
            _ => 1,
        }
    }

    /// Those of its calls whose algorithm is chosen: not all are offered everywhere.
    pub(crate) fn algorithms(&mut self) -> Vec<(&mut Algorithm, usize, DType)> {
        fn of(call: &mut Call) -> Option<(&mut Algorithm, usize, DType)> {
            match &mut call.what {
                What::Broadcast { algorithm, count, .. } => Some((algorithm, *count, call.dtype)),
                What::ReduceScatter { .. } => None,
            }
        }
        match self {
            Step::Calls(calls) => calls.iter_mut().filter_map(of).collect(),
            Step::Chain(Chain { links, count, dtype, .. }) => (links.iter_mut())
                .filter_map(|(link, _)| match link {
                    Link::Broadcast { algorithm, .. } => Some((algorithm, *count, *dtype)),
                    Link::ReduceScatter { .. } => None,
                })
                .collect(),
            Step::Missing(call, _, queued) | Step::Aborted(call, _, _, queued) => {
                std::iter::once(call).chain(queued).filter_map(of).collect()
            }
            Step::Hurried(call, _) => of(call).into_iter().collect(),
            // The calls that differ have an algorithm that is offered everywhere.
            Step::Disagree(.., queued) => queued.iter_mut().filter_map(of).collect(),
            Step::Refused(..) | Step::ResetWithout(_) => Vec::new(),
        }
    }
}

/// Calls behind one that fails.
fn queued(random: &mut Random, ranks: usize) -> Vec<Call> {
    (0..random.below(3)).map(|_| Call::new(random, ranks)).collect()
}

/// A group size of `ranks`.
fn group(random: &mut Random, ranks: usize) -> usize {
    let sizes: Vec<usize> = (1..=ranks).filter(|size| ranks.is_multiple_of(*size)).collect();
    // The world and groups of one are always there; both ends are of most interest.
    if random.one_in(2) { ranks } else { sizes[random.below(sizes.len())] }
}

fn count(random: &mut Random) -> usize {
    match random.below(20) {
        0..10 => random.pick([0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 257]),
        10..18 => random.below(1500),
        18 => random.pick([4095, 4096, 4097]),
        _ => random.below(10_000),
    }
}

/// Of little, mostly.
fn shape(random: &mut Random, axes: usize) -> Vec<usize> {
    if axes == 1 {
        return vec![count(random)];
    }
    (0..axes).map(|_| random.pick([0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17])).collect()
}

/// Lengths of `parts` parts that fill `extent`.
fn lengths(random: &mut Random, parts: usize, extent: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (1..parts).map(|_| random.below(extent + 1)).chain([0, extent]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|w| w[1] - w[0]).collect()
}

const FUSED: [(DType, DType); 10] = [
    (DType::F32, DType::F32),
    (DType::F32, DType::F16),
    (DType::F32, DType::BF16),
    (DType::F16, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::BF16),
    (DType::BF16, DType::F32),
    (DType::BF16, DType::F16),
    (DType::BF16, DType::BF16),
    (DType::F64, DType::F64),
];

const BROADCASTS: [Algorithm; 5] =
    [Algorithm::Auto, Algorithm::OneStage, Algorithm::TwoStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect];

impl Call {
    fn new(random: &mut Random, ranks: usize) -> Self {
        let mut call = Call {
            what: What::Broadcast {
                root: random.below(ranks),
                count: count(random),
                algorithm: random.pick(BROADCASTS),
            },
            dtype: random.pick(DType::ALL),
            offsets: [0; 3].map(|_| random.below(5)),
            blocks: random.one_in(3).then(|| 1 + random.below(4) as u32),
            overlap: random.pick([Overlap::Off, Overlap::AtEnd, Overlap::AtBeginning, Overlap::AtEndWithoutWait]),
            in_place: random.one_in(3),
            late: random.one_in(6).then(|| (random.below(ranks), random.below(1500) as u64)),
            seed: random.next(),
        };
        if random.one_in(2) {
            return call;
        }
        let group = group(random, ranks);
        let axes = 1 + random.below(3);
        let axis = if call.in_place { 0 } else { random.below(axes) };
        let shapes: Vec<_> = (0..ranks / group).map(|_| shape(random, axes)).collect();
        let lengths = if random.one_in(4) {
            shapes.iter().map(|shape| lengths(random, group, shape[axis])).collect()
        } else {
            Vec::new()
        };
        let mut op = random.pick(ReduceOp::ALL);
        let (mut to, mut factor, mut residual) = (call.dtype, 1.0, Residual::None);
        if random.one_in(4) {
            (call.dtype, to) = random.pick(FUSED);
            op = random.pick([ReduceOp::Sum, ReduceOp::Average]);
            factor = random.pick([1.0, 0.1, -2.0, 0.5]);
            residual = random.pick([Residual::None, Residual::Separate, Residual::Output]);
            if call.in_place {
                (to, residual) = (call.dtype, Residual::None);
            }
        }
        call.what = What::ReduceScatter { op, group, axis, shapes, lengths, to, factor, residual };
        call
    }

    /// The same, where it is a call of one rank alone, as one of all: peers can be missed then.
    fn of_peers(mut self, random: &mut Random, ranks: usize) -> Self {
        while matches!(self.what, What::ReduceScatter { group: 1, .. }) {
            self = Call::new(random, ranks);
        }
        self
    }

    pub(crate) fn broadcast(&self) -> Option<Broadcast> {
        let What::Broadcast { root, algorithm, .. } = self.what else { return None };
        let what = Broadcast::from_root(root).algorithm(algorithm).overlap(self.overlap);
        Some(if let Some(blocks) = self.blocks { what.max_blocks(blocks) } else { what })
    }

    /// For all ranks, or for those of one group.
    pub(crate) fn reduce_scatter(&self, of: Option<usize>) -> Option<ReduceScatter> {
        let What::ReduceScatter { op, group, axis, shapes, lengths, factor, .. } = &self.what else { return None };
        let mut what =
            ReduceScatter::new(*op).group_size(*group).axis(*axis as i64).factor(*factor).overlap(self.overlap);
        let groups = match of {
            Some(rank) if rank < group * shapes.len() => rank / group..rank / group + 1,
            _ => 0..shapes.len(),
        };
        what = what.group_shapes(shapes[groups.clone()].iter().cloned());
        if !lengths.is_empty() {
            what = what.group_lengths(lengths[groups].iter().cloned());
        }
        Some(if let Some(blocks) = self.blocks { what.max_blocks(blocks) } else { what })
    }

    pub(crate) fn is_fused(&self) -> bool {
        matches!(&self.what, What::ReduceScatter { to, residual, .. } if *to != self.dtype || *residual != Residual::None)
    }

    pub(crate) fn residual(&self) -> Residual {
        match &self.what {
            What::ReduceScatter { residual, .. } => *residual,
            What::Broadcast { .. } => Residual::None,
        }
    }

    /// Whether `rank` cannot succeed without `absent`; others may, or be stopped by those that cannot.
    pub(crate) fn depends(&self, rank: usize, absent: usize, strict: bool) -> bool {
        match self.what {
            What::Broadcast { root, .. } => strict || rank == root || absent == root,
            What::ReduceScatter { group, .. } => rank / group == absent / group,
        }
    }

    /// The values, and what becomes of them by the oracle.
    pub(crate) fn data(&self, ranks: usize) -> Data {
        let random = &mut Random(self.seed);
        match &self.what {
            What::Broadcast { root, count, .. } => {
                let inputs: Vec<_> = (0..ranks).map(|_| random.elements(self.dtype, *count)).collect();
                let expected = vec![inputs[*root].clone(); ranks];
                Data { inputs, residuals: Vec::new(), expected, to: self.dtype }
            }
            What::ReduceScatter { op, group, axis, shapes, lengths, to, factor, residual } => {
                let counts = shapes.iter().map(|shape| shape.iter().product::<usize>());
                let inputs: Vec<_> = (counts.clone())
                    .flat_map(|count| (0..*group).map(|_| random.elements(self.dtype, count)).collect::<Vec<_>>())
                    .collect();
                let (mut residuals, mut expected) = (Vec::new(), Vec::new());
                for (at, shape) in shapes.iter().enumerate() {
                    let even = (0..*group).map(|r| shape[*axis] / group + usize::from(r < shape[*axis] % group));
                    let lengths = lengths.get(at).cloned().unwrap_or_else(|| even.collect());
                    let mine: Vec<&[u8]> = inputs[at * group..][..*group].iter().map(Vec::as_slice).collect();
                    let plain = *to == self.dtype && *factor == 1.0 && *residual == Residual::None;
                    let whole = oracle::reduce(self.dtype, *op, &mine);
                    let part =
                        |of: &[u8], rank| oracle::part_of_lengths(of, self.dtype.size(), shape, *axis, &lengths, rank);
                    for rank in 0..*group {
                        let mut share = part(&whole, rank);
                        let added = random.elements(*to, share.len() / self.dtype.size());
                        if !plain {
                            let parts: Vec<Vec<u8>> = mine.iter().map(|input| part(input, rank)).collect();
                            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                            let added = (*residual != Residual::None).then_some(&added[..]);
                            share = oracle::fused(self.dtype, *op, &parts, *factor, added, *to);
                        }
                        residuals.push(added);
                        expected.push(match self.in_place {
                            true => replaced(mine[rank], run(shape, &lengths, rank, self.dtype), &share),
                            false => share,
                        });
                    }
                }
                Data { inputs, residuals, expected, to: *to }
            }
        }
    }
}

/// The bytes of a part along axis 0.
fn run(shape: &[usize], lengths: &[usize], rank: usize, dtype: DType) -> Range<usize> {
    let row = shape[1..].iter().product::<usize>() * dtype.size();
    let start = lengths[..rank].iter().sum::<usize>() * row;
    start..start + lengths[rank] * row
}

fn replaced(whole: &[u8], at: Range<usize>, with: &[u8]) -> Vec<u8> {
    let mut whole = whole.to_vec();
    whole[at].copy_from_slice(with);
    whole
}

impl Chain {
    fn new(random: &mut Random, ranks: usize) -> Self {
        let link = |random: &mut Random| {
            if random.one_in(2) {
                Link::Broadcast { root: random.below(ranks), algorithm: random.pick(BROADCASTS) }
            } else {
                Link::ReduceScatter { op: random.pick(ReduceOp::ALL), group: group(random, ranks) }
            }
        };
        Chain {
            dtype: random.pick(DType::ALL),
            count: count(random),
            offset: random.below(5),
            links: (0..1 + random.below(4))
                .map(|_| (link(random), random.one_in(3).then(|| 1 + random.below(4) as u32)))
                .collect(),
            times: 1 + random.below(3),
            recorded: random.one_in(2),
            seed: random.next(),
        }
    }

    /// What the ranks' buffers hold first, and after it all.
    pub(crate) fn data(&self, ranks: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let random = &mut Random(self.seed);
        let first: Vec<_> = (0..ranks).map(|_| random.elements(self.dtype, self.count)).collect();
        let mut state = first.clone();
        for (link, _) in (0..self.times).flat_map(|_| &self.links) {
            match *link {
                Link::Broadcast { root, .. } => state = vec![state[root].clone(); ranks],
                Link::ReduceScatter { op, group } => {
                    for members in state.chunks_mut(group) {
                        let inputs: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                        let whole = oracle::reduce(self.dtype, op, &inputs);
                        for (rank, mine) in members.iter_mut().enumerate() {
                            let at = self.part(group, rank);
                            mine[at.clone()].copy_from_slice(&whole[at]);
                        }
                    }
                }
            }
        }
        (first, state)
    }

    /// The bytes of a rank's part in groups of `group`.
    pub(crate) fn part(&self, group: usize, rank: usize) -> Range<usize> {
        let even: Vec<_> = (0..group).map(|r| self.count / group + usize::from(r < self.count % group)).collect();
        run(&[self.count], &even, rank % group, self.dtype)
    }
}

fn mistake(random: &mut Random, ranks: usize) -> Step {
    let mistake = random.pick([
        Mistake::Root,
        Mistake::Blocks,
        Mistake::Limit,
        Mistake::Group,
        Mistake::Axis,
        Mistake::Lengths,
        Mistake::Output,
        Mistake::Epilogue,
    ]);
    let mut call = Call::new(random, ranks);
    // A receiver's output is as long as the broadcast that it comes with.
    let of_reduce_scatter = !matches!(mistake, Mistake::Root | Mistake::Blocks | Mistake::Limit);
    let of_broadcast = matches!(mistake, Mistake::Root);
    while call.in_place
        || (of_reduce_scatter && (call.is_fused() || matches!(call.what, What::Broadcast { .. })))
        || (of_broadcast && matches!(call.what, What::ReduceScatter { .. }))
    {
        call = Call::new(random, ranks);
    }
    let mut wrong = call.clone();
    match (mistake, &mut wrong.what) {
        (Mistake::Root, What::Broadcast { root, .. }) => *root = ranks + random.below(3),
        (Mistake::Blocks, _) => wrong.blocks = Some(random.pick([0, crossccl::MAX_BLOCKS + 1])),
        (Mistake::Group, What::ReduceScatter { group, .. }) => *group = random.pick([0, ranks + 1]),
        (Mistake::Axis, What::ReduceScatter { axis, shapes, .. }) => *axis = shapes[0].len(),
        (Mistake::Lengths, What::ReduceScatter { lengths, shapes, group, axis, .. }) => {
            *lengths = shapes.iter().map(|shape| vec![shape[*axis] + 1; *group]).collect();
        }
        (Mistake::Epilogue, What::ReduceScatter { op, factor, .. }) => {
            (*op, *factor) = (ReduceOp::Max, 2.0);
        }
        _ => {}
    }
    Step::Refused(call, wrong, mistake)
}

/// Two calls that differ in one thing, the second one rank's.
fn disagreement(random: &mut Random, ranks: usize, staged: bool) -> Step {
    let fields = ["root", "count", "dtype", "algorithm", "collective", "op", "axis", "shape", "parts"];
    let field = match random.pick(fields) {
        "algorithm" if !staged => "op",
        field => field,
    };
    let mut call = Call::new(random, ranks);
    (call.in_place, call.blocks, call.dtype) = (false, None, DType::F32);
    let tensor = |op, axis, shape: [usize; 2], lengths: Vec<Vec<usize>>| What::ReduceScatter {
        op,
        group: ranks,
        axis,
        shapes: vec![shape.into()],
        lengths,
        to: DType::F32,
        factor: 1.0,
        residual: Residual::None,
    };
    let bytes = |root, count, algorithm| What::Broadcast { root, count, algorithm };
    let (root, count) = (random.below(ranks), 1 + random.below(2000));
    let (rows, columns) = (ranks + 1 + random.below(6), 2 * ranks + random.below(9));
    call.what = match field {
        "root" | "count" | "dtype" | "algorithm" | "collective" => bytes(root, count, Algorithm::OneStage),
        _ => tensor(ReduceOp::Sum, 0, [rows, 2 * columns], Vec::new()),
    };
    let mut other = call.clone();
    match field {
        "root" => other.what = bytes((root + 1) % ranks, count, Algorithm::OneStage),
        "count" => other.what = bytes(root, count - 1, Algorithm::OneStage),
        "dtype" => other.dtype = DType::I32,
        "algorithm" => other.what = bytes(root, count, Algorithm::TwoStageStaged),
        "collective" => other.what = tensor(ReduceOp::Sum, 0, [rows, columns], Vec::new()),
        "op" => other.what = tensor(ReduceOp::Max, 0, [rows, 2 * columns], Vec::new()),
        "axis" => other.what = tensor(ReduceOp::Sum, 1, [rows, 2 * columns], Vec::new()),
        "shape" => other.what = tensor(ReduceOp::Sum, 0, [2 * rows, columns], Vec::new()),
        _ => {
            let mut lengths = vec![0; ranks];
            lengths[0] = rows;
            other.what = tensor(ReduceOp::Sum, 0, [rows, 2 * columns], vec![lengths]);
        }
    }
    Step::Disagree(call, random.below(ranks), other, field, queued(random, ranks))
}

#[test]
fn programs_are_what_their_number_says() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let program = Program::new(seed);
        assert_eq!(format!("{program:?}"), format!("{:?}", Program::new(seed)));
        assert!(program.steps.iter().map(Step::operations).sum::<usize>() <= MOST);
        kinds.extend(program.steps.iter().map(|step| match step {
            Step::Calls(_) => "calls",
            Step::Chain(_) => "chain",
            Step::Refused(..) => "refused",
            Step::Missing(..) => "missing",
            Step::Aborted(..) => "aborted",
            Step::Disagree(_, _, _, field, _) => field,
            Step::Hurried(..) => "hurried",
            Step::ResetWithout(_) => "reset",
        }));
    }
    assert_eq!(kinds.len(), 16, "{kinds:?}");
}
