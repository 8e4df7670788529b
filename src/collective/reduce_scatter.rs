//! Grouped reduce-scatter: every rank of a group gets its part of the tensor, reduced over the group.

use smallvec::SmallVec;

use super::{
    Options, Prepared, Span, bytes_of, check_address, check_len, check_overlaps, check_view, invalid, option_setters,
};
use crate::{
    backend::Backend,
    buffer::View,
    communicator::Shared,
    dtype::DType,
    error::{Error, Result},
    op::ReduceOp,
    plan::{
        Explanation, Plan,
        partition::{Part, Partition, Shape},
        request::{Collective, Request},
    },
    raw::RawRank,
};

const OPERATION: &str = "reduce_scatter";

/// A reduce-scatter. Every rank gives a tensor of the same row-major shape; rank r of a group gets
/// part r of the element-wise reduction over the group, cut along one axis.
///
/// The axis is split evenly, the lower ranks get the remainder one unit each, or by
/// [`lengths`](Self::lengths); parts may be empty.
/// Groups are contiguous ranks: with groups of 2, ranks 0 and 1, ranks 2 and 3, and so on. Groups may
/// differ in shape from each other. A group of one rank copies.
///
/// A sum or an average of floats can end in a fused epilogue, in the accumulator, before the one rounding:
/// result = (sum \[/ ranks\]) x [`factor`](Self::factor) + residual, in
/// [another dtype](Self::output_dtype). For residuals and other dtypes see
/// [`Communicator::reduce_scatter_fused`](crate::Communicator::reduce_scatter_fused).
///
/// An operation is enough where the rest is left alone:
/// `comm.reduce_scatter(&inputs, &mut outputs, ReduceOp::Sum)` takes the tensor as one-dimensional.
#[derive(Clone, Debug)]
pub struct ReduceScatter {
    op: ReduceOp,
    axis: i64,
    group_size: Option<usize>,
    shapes: Vec<Vec<usize>>,
    lengths: Vec<Vec<usize>>,
    strides: Option<Vec<usize>>,
    factor: f64,
    output: Option<DType>,
    options: Options,
}

impl ReduceScatter {
    /// A reduce-scatter of all ranks along axis 0 of a one-dimensional tensor.
    pub fn new(op: ReduceOp) -> Self {
        ReduceScatter {
            op,
            axis: 0,
            group_size: None,
            shapes: Vec::new(),
            lengths: Vec::new(),
            strides: None,
            factor: 1.0,
            output: None,
            options: Options::default(),
        }
    }

    /// The axis to cut, counted from 0. Negative axes are an error.
    pub fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Ranks of a group; must divide the number of ranks. Default: all.
    pub fn group_size(mut self, ranks: usize) -> Self {
        self.group_size = Some(ranks);
        self
    }

    /// The shape of every rank's input. Default: one axis.
    pub fn shape(mut self, shape: impl Into<Vec<usize>>) -> Self {
        self.shapes = vec![shape.into()];
        self
    }

    /// A shape for each group, where they differ.
    pub fn group_shapes(mut self, shapes: impl IntoIterator<Item = impl Into<Vec<usize>>>) -> Self {
        self.shapes = shapes.into_iter().map(Into::into).collect();
        self
    }

    /// How many units of the axis each rank of a group gets; they add up to its extent. Default: an even
    /// split.
    pub fn lengths(mut self, lengths: impl Into<Vec<usize>>) -> Self {
        self.lengths = vec![lengths.into()];
        self
    }

    /// Lengths for each group, where they differ.
    pub fn group_lengths(mut self, lengths: impl IntoIterator<Item = impl Into<Vec<usize>>>) -> Self {
        self.lengths = lengths.into_iter().map(Into::into).collect();
        self
    }

    /// Multiplies the sum or average, in the accumulator (f32 for f16, bf16 and f32, to which the factor is
    /// rounded first; f64 for f64). Floats only; finite. Each rank's own: ranks are not checked to agree.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The dtype of the result; default: that of the input. f16, bf16 and f32 can become each other. For the
    /// raw forms and for plans: typed calls take it from their outputs.
    pub fn output_dtype(mut self, dtype: DType) -> Self {
        self.output = Some(dtype);
        self
    }

    /// The strides of the input in elements, for callers whose tensors carry them: checked to be
    /// those of a contiguous row-major tensor, the only layout offered.
    pub fn strides(mut self, strides: impl Into<Vec<usize>>) -> Self {
        self.strides = Some(strides.into());
        self
    }

    option_setters!();
}

impl From<ReduceOp> for ReduceScatter {
    fn from(op: ReduceOp) -> Self {
        ReduceScatter::new(op)
    }
}

/// A group's tensor.
#[derive(Clone, Debug)]
struct Cut {
    shape: Shape,
    axis: usize,
    partition: Partition,
}

impl ReduceScatter {
    fn groups<B: Backend>(&self, shared: &Shared<B>) -> Result<usize> {
        let ranks = shared.ranks.len();
        let size = self.group_size.unwrap_or(ranks);
        if size > 0 && ranks.is_multiple_of(size) {
            return Ok(size);
        }
        Err(invalid(OPERATION, None, "group_size", format!("a divisor of the {ranks} ranks"), size))
    }

    /// The tensor of `group`, of which rank `rank` gave `count` elements.
    fn cut<B: Backend>(&self, shared: &Shared<B>, size: usize, group: usize, rank: usize, count: u64) -> Result<Cut> {
        let groups = shared.ranks.len() / size;
        let shape: Shape = match one_or_each(&self.shapes, "shapes", groups, group)? {
            None => Shape::from_slice(&[count]),
            Some(shape) => shape.iter().map(|e| *e as u64).collect(),
        };
        let axis = match usize::try_from(self.axis) {
            Ok(axis) if axis < shape.len() => axis,
            _ => {
                let expected = format!("an axis of the shape {shape:?}, counted from 0");
                return Err(invalid(OPERATION, None, "axis", expected, self.axis));
            }
        };
        let Some(mut partition) = Partition::new(&shape, axis, size) else {
            let expected = "a shape whose elements can be counted in 64 bits";
            return Err(invalid(OPERATION, None, "shape", expected, format!("{shape:?}")));
        };
        if let Some(lengths) = one_or_each(&self.lengths, "lengths", groups, group)? {
            let lengths: SmallVec<[u64; 8]> = lengths.iter().map(|l| *l as u64).collect();
            let Some(cut) = partition.with_lengths(&lengths) else {
                let extent = shape[axis];
                let expected = format!(
                    "one for each of the group's {size} ranks, {extent} together: axis {axis} of the shape {shape:?}"
                );
                return Err(invalid(OPERATION, None, "lengths", expected, format!("{lengths:?}")));
            };
            partition = cut;
        }
        if partition.count() != count {
            let expected = format!("{} elements, the shape being {shape:?}", partition.count());
            return Err(invalid(OPERATION, Some(rank), "input", expected, count));
        }
        if let Some(strides) = &self.strides {
            let mut contiguous: Vec<usize> = shape
                .iter()
                .rev()
                .scan(1usize, |s, e| Some(std::mem::replace(s, s.saturating_mul(*e as usize))))
                .collect();
            contiguous.reverse();
            // The stride of an axis of one element leads nowhere: frameworks put anything there.
            let fits = strides.len() == shape.len()
                && (count == 0 || (0..shape.len()).all(|i| shape[i] == 1 || strides[i] == contiguous[i]));
            if !fits {
                return Err(Error::Unsupported {
                    operation: OPERATION,
                    what: format!(
                        "strides {strides:?} are not those of a contiguous row-major tensor of shape {shape:?} \
                         ({contiguous:?}); copy the tensor to a contiguous one first"
                    ),
                });
            }
        }
        Ok(Cut { shape, axis, partition })
    }

    fn request(&self, size: usize, cut: &Cut, dtype: DType) -> Request {
        Request {
            ranks: size,
            dtype,
            count: cut.partition.count(),
            collective: Collective::ReduceScatter {
                op: self.op,
                shape: cut.shape.clone(),
                axis: cut.axis,
                partition: cut.partition.clone(),
                output: self.output(dtype),
                factor: self.factor_in(dtype),
            },
        }
    }

    /// The factor as the accumulator of `dtype` holds it.
    fn factor_in(&self, dtype: DType) -> f64 {
        if dtype == DType::F64 { self.factor } else { f64::from(self.factor as f32) }
    }

    fn output(&self, dtype: DType) -> DType {
        self.output.unwrap_or(dtype)
    }

    /// The same for outputs of `dtype`, unless another one was asked for.
    pub(crate) fn for_outputs(mut self, dtype: Option<DType>) -> Self {
        self.output = self.output.or(dtype);
        self
    }

    /// The table of what can be fused: README prints it.
    fn check_epilogue(&self, dtype: DType, residual: bool) -> Result<()> {
        let output = self.output(dtype);
        let asked = match (output != dtype, residual, self.factor != 1.0) {
            (true, _, _) => format!("{output} from {dtype}"),
            (_, true, _) => format!("a residual with {dtype}"),
            (_, _, true) => format!("a factor with {dtype}"),
            _ => return Ok(()),
        };
        let unsupported = |what| Err(Error::Unsupported { operation: OPERATION, what });
        if !matches!(self.op, ReduceOp::Sum | ReduceOp::Average) {
            return unsupported(format!("{asked} is offered for sum and average, not for {}", self.op));
        }
        if !dtype.fused_outputs().contains(&output) {
            return unsupported(format!(
                "{asked} is not offered: f16, bf16 and f32 become each other, f64 stays f64, integers have no epilogue"
            ));
        }
        if !self.factor_in(dtype).is_finite() {
            let expected = format!("a finite number in the accumulator of {dtype}");
            return Err(invalid(OPERATION, None, "factor", expected, self.factor));
        }
        Ok(())
    }

    /// The outputs of an in-place call of all ranks.
    pub(crate) fn all_in_place_outputs<B: Backend>(
        &self,
        shared: &Shared<B>,
        inputs: &[View<B>],
    ) -> Result<SmallVec<[View<B>; 8]>> {
        (inputs.iter().take(shared.ranks.len()).enumerate())
            .map(|(rank, view)| self.in_place_outputs(shared, rank, view))
            .collect()
    }

    /// The output of an in-place call of `rank`: its part of `buffer`.
    pub(crate) fn in_place_outputs<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        buffer: &View<B>,
    ) -> Result<View<B>> {
        let size = self.groups(shared)?;
        let cut = self.cut(shared, size, rank / size, rank, buffer.count)?;
        if cut.axis != 0 {
            return Err(Error::Unsupported {
                operation: OPERATION,
                what: format!(
                    "in place is offered along axis 0 only, not along axis {}; give separate outputs",
                    cut.axis
                ),
            });
        }
        let part = cut.partition.part(rank % size);
        Ok(View {
            address: buffer.address + part.offset * buffer.dtype.size() as u64,
            count: part.count(),
            memory: buffer.memory.clone(),
            stream: buffer.stream.clone(),
            dtype: buffer.dtype,
        })
    }

    /// The part of the input that a rank gets.
    pub(crate) fn part<B: Backend>(&self, shared: &Shared<B>, rank: usize, count: u64) -> Result<Part> {
        let size = self.groups(shared)?;
        Ok(self.cut(shared, size, rank / size, rank, count)?.partition.part(rank % size))
    }

    /// The plan of the group of `rank` for `count` elements, without buffers.
    pub(crate) fn plan<B: Backend>(&self, shared: &Shared<B>, rank: usize, count: u64, dtype: DType) -> Result<Plan> {
        self.options.plan(shared, &self.request_of(shared, rank, count, dtype)?)
    }

    /// Why that plan.
    pub(crate) fn explain<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        count: u64,
        dtype: DType,
    ) -> Result<Explanation> {
        self.options.explain(shared, &self.request_of(shared, rank, count, dtype)?)
    }

    fn request_of<B: Backend>(&self, shared: &Shared<B>, rank: usize, count: u64, dtype: DType) -> Result<Request> {
        let size = self.groups(shared)?;
        let cut = self.cut(shared, size, rank / size, rank, count)?;
        bytes_of(OPERATION, rank, count, dtype)?;
        self.check_epilogue(dtype, false)?;
        Ok(self.request(size, &cut, dtype))
    }

    /// All ranks at once: inputs, outputs and, where there are any, residuals are one a rank.
    pub(crate) fn prepare_all<B: Backend>(
        &self,
        shared: &Shared<B>,
        inputs: &[View<B>],
        outputs: &[View<B>],
        residuals: &[Option<View<B>>],
    ) -> Result<SmallVec<[Prepared; 8]>> {
        self.groups(shared)?;
        check_len(OPERATION, "inputs", shared.ranks.len(), inputs.len())?;
        check_len(OPERATION, "outputs", shared.ranks.len(), outputs.len())?;
        let dtype = inputs[0].dtype;
        let mut ranks = SmallVec::<[RawRank; 8]>::new();
        let mut counts = SmallVec::<[u64; 8]>::new();
        for (rank, (input, output)) in inputs.iter().zip(outputs).enumerate() {
            check_view(shared, OPERATION, rank, "input", input, dtype)?;
            let residual = residuals.get(rank).and_then(Option::as_ref);
            ranks.push(self.check_views(shared, rank, input, output, residual)?);
            counts.push(input.count);
        }
        self.prepare_all_raw(shared, &ranks, &counts, dtype)
    }

    /// All ranks at once, by address; `counts` are the elements of each rank's input.
    pub(crate) fn prepare_all_raw<B: Backend>(
        &self,
        shared: &Shared<B>,
        ranks: &[RawRank],
        counts: &[u64],
        dtype: DType,
    ) -> Result<SmallVec<[Prepared; 8]>> {
        let size = self.groups(shared)?;
        check_len(OPERATION, "ranks", shared.ranks.len(), ranks.len())?;
        check_len(OPERATION, "counts", shared.ranks.len(), counts.len())?;
        let mut prepared = SmallVec::<[Prepared; 8]>::new();
        self.check_epilogue(dtype, ranks.iter().any(|r| r.residual != 0))?;
        for group in 0..ranks.len() / size {
            let first = group * size;
            let cut = self.cut(shared, size, group, first, counts[first])?;
            bytes_of(OPERATION, first, cut.partition.count(), dtype)?;
            let request = self.request(size, &cut, dtype);
            let planned = self.options.planned(shared, &request)?;
            for rank in first..first + size {
                if counts[rank] != counts[first] {
                    let expected = format!("{} elements, as rank {first} of its group", counts[first]);
                    return Err(invalid(OPERATION, Some(rank), "input", expected, counts[rank]));
                }
                let part = cut.partition.part(rank - first);
                self.check_one(rank, ranks[rank], &cut, part, dtype)?;
                prepared.push(self.options.prepare(shared, rank, size, request.clone(), &planned, ranks[rank]));
            }
        }
        check_overlaps(&prepared.iter().collect::<SmallVec<[_; 8]>>())?;
        Ok(prepared)
    }

    /// One rank's part.
    pub(crate) fn prepare_one<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        input: &View<B>,
        output: &View<B>,
        residual: Option<&View<B>>,
    ) -> Result<Prepared> {
        check_view(shared, OPERATION, rank, "input", input, input.dtype)?;
        let raw = self.check_views(shared, rank, input, output, residual)?;
        self.prepare_one_raw(shared, rank, raw, input.count, input.dtype)
    }

    /// One rank's part, by address; `count` elements of input.
    pub(crate) fn prepare_one_raw<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        raw: RawRank,
        count: u64,
        dtype: DType,
    ) -> Result<Prepared> {
        let size = self.groups(shared)?;
        let cut = self.cut(shared, size, rank / size, rank, count)?;
        bytes_of(OPERATION, rank, cut.partition.count(), dtype)?;
        let request = self.request(size, &cut, dtype);
        let planned = self.options.planned(shared, &request)?;
        self.check_epilogue(dtype, raw.residual != 0)?;
        let part = cut.partition.part(rank % size);
        self.check_one(rank, raw, &cut, part, dtype)?;
        let prepared = self.options.prepare(shared, rank, size, request, &planned, raw);
        check_overlaps(&[&prepared])?;
        Ok(prepared)
    }

    /// The addresses of what a rank reads, writes and adds.
    fn check_one(&self, rank: usize, raw: RawRank, cut: &Cut, part: Part, dtype: DType) -> Result<()> {
        let to = self.output(dtype);
        let input = Span { address: raw.send, bytes: bytes_of(OPERATION, rank, cut.partition.count(), dtype)? };
        let output = Span { address: raw.recv, bytes: bytes_of(OPERATION, rank, part.count(), to)? };
        let residual = Span { address: raw.residual, bytes: if raw.residual == 0 { 0 } else { output.bytes } };
        check_address(OPERATION, rank, "input", input, dtype)?;
        check_address(OPERATION, rank, "output", output, to)?;
        check_address(OPERATION, rank, "residual", residual, to)
    }

    fn check_views<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        input: &View<B>,
        output: &View<B>,
        residual: Option<&View<B>>,
    ) -> Result<RawRank> {
        let to = self.output(input.dtype);
        check_view(shared, OPERATION, rank, "output", output, to)?;
        self.check_output(shared, rank, "output", input.count, output.count)?;
        if let Some(residual) = residual {
            check_view(shared, OPERATION, rank, "residual", residual, to)?;
            self.check_output(shared, rank, "residual", input.count, residual.count)?;
        }
        Ok(RawRank { residual: residual.map_or(0, |r| r.address), ..RawRank::new(input.address, output.address) })
    }

    fn check_output<B: Backend>(
        &self,
        shared: &Shared<B>,
        rank: usize,
        argument: &'static str,
        input: u64,
        output: u64,
    ) -> Result<()> {
        let size = self.groups(shared)?;
        let cut = self.cut(shared, size, rank / size, rank, input)?;
        let part = cut.partition.part(rank % size).count();
        if part == output {
            return Ok(());
        }
        let expected = format!("{part} elements, its part of the shape {:?} along axis {}", cut.shape, cut.axis);
        Err(invalid(OPERATION, Some(rank), argument, expected, output))
    }
}

/// What `group` was given of what is given for all groups or for each.
fn one_or_each<'a>(
    given: &'a [Vec<usize>],
    argument: &'static str,
    groups: usize,
    group: usize,
) -> Result<Option<&'a [usize]>> {
    match given {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        each if each.len() == groups => Ok(Some(&each[group])),
        each => {
            let expected = format!("one, or one for each of the {groups} groups");
            Err(invalid(OPERATION, None, argument, expected, each.len()))
        }
    }
}
