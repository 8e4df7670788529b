//! Typed memory of one rank.

use std::{fmt, marker::PhantomData, ops::Range, sync::Arc};

use crate::{
    backend::{
        Backend, Fault, MemoryKind,
        memory::{Allocation, Writing},
    },
    dtype::{DType, Element},
    error::{Error, Result},
};

/// The element type of a [`Buffer`] whose dtype is known at run time only.
#[derive(Clone, Copy, Debug)]
pub enum Untyped {}

/// Device memory of `len` elements, on one stream of one device.
///
/// Reading and writing from the host goes through the stream, after everything that was enqueued on
/// it before, collectives included.
pub struct Buffer<B: Backend, T> {
    memory: Arc<Allocation<B>>,
    stream: B::Stream,
    dtype: DType,
    len: usize,
    _elements: PhantomData<T>,
}

impl<B: Backend, T: Element> Buffer<B, T> {
    /// A buffer of `len` zeros for work on `stream`.
    ///
    /// # Errors
    /// [`Error::Driver`] where the memory cannot be had; [`Error::InvalidArgument`] where it is
    /// larger than an address space.
    pub fn new(stream: &B::Stream, len: usize) -> Result<Self> {
        Self::of_kind(stream, MemoryKind::Device, len)
    }

    /// A buffer of `len` zeros for work on `stream`, in memory that is coherent between devices while kernels run:
    /// for signal buffers, and for what [`Builder::coherent_buffers`](crate::Builder::coherent_buffers) offers.
    /// Where ordinary memory is not coherent, this is slower.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and [`Error::SignalMemoryNotCoherent`] where the device has no such memory.
    pub fn coherent(stream: &B::Stream, len: usize) -> Result<Self> {
        Self::of_kind(stream, MemoryKind::Signal, len)
    }

    pub(crate) fn of_kind(stream: &B::Stream, kind: MemoryKind, len: usize) -> Result<Self> {
        let Buffer { memory, stream, dtype, len, .. } = Buffer::<B, Untyped>::of(stream, kind, T::DTYPE, len)?;
        Ok(Buffer { memory, stream, dtype, len, _elements: PhantomData })
    }

    /// A buffer with a copy of `elements` for work on `stream`.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn from_slice(stream: &B::Stream, elements: &[T]) -> Result<Self> {
        Self::new(stream, elements.len())?.filled(elements)
    }

    pub(crate) fn filled(mut self, elements: &[T]) -> Result<Self> {
        self.write(elements)?;
        Ok(self)
    }

    /// Copies `elements`, exactly as many as the buffer has, into it; waits until that is done.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length; [`Error::Busy`] while a failed collective may
    /// still use the buffer.
    pub fn write(&mut self, elements: &[T]) -> Result<()> {
        self.write_bytes(bytemuck::cast_slice(elements))
    }

    /// Copies `elements` to the buffer's from `start` on; waits until that is done.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where they do not lie inside; [`Error::Busy`] while a failed
    /// collective may still use the buffer.
    pub fn write_at(&mut self, start: usize, elements: &[T]) -> Result<()> {
        self.check_range(&(start..start.saturating_add(elements.len())))?;
        self.check_borrow("buffer write")?;
        let _writing = self.check_flight("buffer write")?;
        let bytes = bytemuck::cast_slice(elements);
        self.memory.write(&self.stream, start * size_of::<T>(), bytes).map_err(|f| self.driver_error(f))
    }

    /// Waits for the work enqueued so far and copies the buffer's elements from `start` on to
    /// `elements`.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn read_at(&self, start: usize, elements: &mut [T]) -> Result<()> {
        self.check_range(&(start..start.saturating_add(elements.len())))?;
        self.check_borrow("buffer read")?;
        let bytes = bytemuck::cast_slice_mut(elements);
        self.memory.read(&self.stream, start * size_of::<T>(), bytes).map_err(|f| self.driver_error(f))
    }

    /// Waits for the work enqueued so far and copies the elements out.
    ///
    /// # Errors
    /// [`Error::Busy`] while a failed collective may still use the buffer.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.len];
        self.read_bytes(bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }
}

impl<B: Backend> Buffer<B, Untyped> {
    /// A buffer of `len` zeros of a dtype known at run time, for work on `stream`.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_dtype(stream: &B::Stream, dtype: DType, len: usize) -> Result<Self> {
        Self::of(stream, MemoryKind::Device, dtype, len)
    }

    /// As [`coherent`](Self::coherent), of a dtype known at run time.
    ///
    /// # Errors
    /// As for [`coherent`](Self::coherent).
    pub fn coherent_with_dtype(stream: &B::Stream, dtype: DType, len: usize) -> Result<Self> {
        Self::of(stream, MemoryKind::Signal, dtype, len)
    }

    pub(crate) fn of(stream: &B::Stream, kind: MemoryKind, dtype: DType, len: usize) -> Result<Self> {
        let Some(bytes) = len.checked_mul(dtype.size()) else {
            return Err(Error::InvalidArgument {
                operation: "buffer",
                rank: None,
                argument: "length",
                expected: format!("at most {} elements of {dtype}", usize::MAX / dtype.size()),
                got: len.to_string(),
            });
        };
        let device = B::device_of(stream);
        let memory = Allocation::new(&device, kind, bytes).map_err(|f| driver_error::<B>(&device, f))?;
        Ok(Buffer { memory, stream: stream.clone(), dtype, len, _elements: PhantomData })
    }
}

impl<B: Backend, T> Buffer<B, T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The stream it works on.
    pub fn stream(&self) -> &B::Stream {
        &self.stream
    }

    /// The device address of the first element, for the `*_raw` forms and for kernels of your own.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Copies `bytes`, exactly as many as the buffer has, into it; waits until that is done.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.check("buffer write", bytes.len())?;
        let _writing = self.check_flight("buffer write")?;
        self.memory.write(&self.stream, 0, bytes).map_err(|f| self.driver_error(f))
    }

    /// Waits for the work enqueued so far and copies the bytes, exactly as many as the buffer has,
    /// out.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length; [`Error::Busy`] while a failed collective may
    /// still use the buffer.
    pub fn read_bytes(&self, bytes: &mut [u8]) -> Result<()> {
        self.check("buffer read", bytes.len())?;
        self.memory.read(&self.stream, 0, bytes).map_err(|f| self.driver_error(f))
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// [`Error::Busy`] while a failed collective may still use the buffer.
    pub fn fill_bytes(&mut self, byte: u8) -> Result<()> {
        self.check("buffer fill", self.size_in_bytes())?;
        let _writing = self.check_flight("buffer fill")?;
        self.memory.fill(&self.stream, byte).map_err(|f| self.driver_error(f))
    }

    /// A part of the buffer, as an input.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the range does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Result<Slice<'_, B, T>> {
        self.check_range(&range)?;
        Ok(Slice { view: self.view(range), _borrow: PhantomData })
    }

    /// A part of the buffer, as an output.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the range does not lie inside.
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<SliceMut<'_, B, T>> {
        self.check_range(&range)?;
        Ok(SliceMut { view: self.view(range), _borrow: PhantomData })
    }

    fn view(&self, range: Range<usize>) -> View<B> {
        View {
            memory: self.memory.clone(),
            stream: self.stream.clone(),
            dtype: self.dtype,
            address: self.memory.address() + (range.start * self.dtype.size()) as u64,
            count: (range.end - range.start) as u64,
        }
    }

    fn check_range(&self, range: &Range<usize>) -> Result<()> {
        if range.start <= range.end && range.end <= self.len {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            operation: "buffer slice",
            rank: None,
            argument: "range",
            expected: format!("a range within 0..{}", self.len),
            got: format!("{range:?}"),
        })
    }

    fn check(&self, operation: &'static str, bytes: usize) -> Result<()> {
        if bytes != self.size_in_bytes() {
            return Err(Error::InvalidArgument {
                operation,
                rank: None,
                argument: "length",
                expected: format!("{} bytes", self.size_in_bytes()),
                got: format!("{bytes}"),
            });
        }
        self.check_borrow(operation)
    }

    fn check_borrow(&self, operation: &'static str) -> Result<()> {
        if self.memory.is_borrowed() {
            return Err(Error::Busy {
                operation,
                what: "a collective that failed may still use the buffer; call reset on all ranks first".into(),
            });
        }
        Ok(())
    }

    /// Borrows keep writes away from a collective in flight, but not from a replay, nor once a handle was leaked: peers
    /// may read the memory then, and the stream orders the own rank's work only.
    fn check_flight(&self, operation: &'static str) -> Result<Writing<'_, B>> {
        self.memory.write_from_host().ok_or_else(|| Error::Busy {
            operation,
            what: format!("{} may still use the buffer; wait for it first", self.memory.user()),
        })
    }

    fn driver_error(&self, fault: Fault) -> Error {
        driver_error::<B>(&B::device_of(&self.stream), fault)
    }

    pub(crate) fn memory(&self) -> &Arc<Allocation<B>> {
        &self.memory
    }
}

fn driver_error<B: Backend>(device: &B::Device, fault: Fault) -> Error {
    if fault.not_coherent {
        return Error::not_coherent::<B>(device, None, &fault);
    }
    Error::Driver {
        backend: B::NAME,
        call: fault.call,
        device: B::ordinal(device),
        rank: None,
        code: fault.code,
        name: fault.name,
    }
}

impl<B: Backend, T> fmt::Debug for Buffer<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {} on {:?})", self.len, self.dtype, self.stream)
    }
}

/// What a collective needs to know of a buffer: untied from its lifetime, but an owner.
#[derive(Debug)]
pub(crate) struct View<B: Backend> {
    pub(crate) memory: Arc<Allocation<B>>,
    pub(crate) stream: B::Stream,
    pub(crate) dtype: DType,
    pub(crate) address: u64,
    pub(crate) count: u64,
}

// Derived, it would ask for `B: Clone`.
impl<B: Backend> Clone for View<B> {
    fn clone(&self) -> Self {
        View { memory: self.memory.clone(), stream: self.stream.clone(), ..*self }
    }
}

/// A part of a buffer that a collective reads.
#[derive(Debug)]
pub struct Slice<'a, B: Backend, T> {
    pub(crate) view: View<B>,
    _borrow: PhantomData<&'a Buffer<B, T>>,
}

/// A part of a buffer that a collective writes (and, in place, reads).
#[derive(Debug)]
pub struct SliceMut<'a, B: Backend, T> {
    pub(crate) view: View<B>,
    _borrow: PhantomData<&'a mut Buffer<B, T>>,
}

impl<'a, B: Backend, T> From<&'a Buffer<B, T>> for Slice<'a, B, T> {
    fn from(buffer: &'a Buffer<B, T>) -> Self {
        Slice { view: buffer.view(0..buffer.len), _borrow: PhantomData }
    }
}

impl<'a, B: Backend, T> From<&'a mut Buffer<B, T>> for SliceMut<'a, B, T> {
    fn from(buffer: &'a mut Buffer<B, T>) -> Self {
        SliceMut { view: buffer.view(0..buffer.len), _borrow: PhantomData }
    }
}

/// Where a fused reduce-scatter puts a rank's result, and what it adds to it.
#[derive(Debug)]
pub struct Destination<'a, B: Backend, T> {
    output: View<B>,
    residual: Option<View<B>>,
    _borrow: PhantomData<&'a mut Buffer<B, T>>,
}

impl<'a, B: Backend, T> Destination<'a, B, T> {
    /// The result alone.
    pub fn new(output: impl Into<SliceMut<'a, B, T>>) -> Self {
        Destination { output: output.into().view, residual: None, _borrow: PhantomData }
    }

    /// The result plus `residual`, which has the output's length and dtype.
    pub fn residual(mut self, residual: impl Into<Slice<'a, B, T>>) -> Self {
        self.residual = Some(residual.into().view);
        self
    }

    /// The result plus what the output holds.
    pub fn accumulate(output: impl Into<SliceMut<'a, B, T>>) -> Self {
        let output = output.into().view;
        Destination { residual: Some(output.clone()), output, _borrow: PhantomData }
    }

    pub(crate) fn views(self) -> (View<B>, Option<View<B>>) {
        (self.output, self.residual)
    }
}

impl<'a, B: Backend, T> From<&'a mut Buffer<B, T>> for Destination<'a, B, T> {
    fn from(output: &'a mut Buffer<B, T>) -> Self {
        Destination::new(output)
    }
}

impl<'a, B: Backend, T> From<SliceMut<'a, B, T>> for Destination<'a, B, T> {
    fn from(output: SliceMut<'a, B, T>) -> Self {
        Destination::new(output)
    }
}
