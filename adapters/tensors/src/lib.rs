//! What adapters of crossccl to the tensors of frameworks share: the checks before anything is launched, new tensors of the
//! right shapes, the launches of all ranks that a thread drives before it waits for one, and what becomes of memory after a
//! failure. An adapter knows where its framework's tensors lie: [`Seat`].

use std::{fmt::Display, mem::forget};

use crossccl::{Backend, Broadcast, DType, Error, Launched, RankComm, RawRank, ReduceScatter, Result};

/// A tensor, row-major without gaps, as crossccl sees it.
#[derive(Debug)]
pub struct Seat<B: Backend> {
    /// Where work on it is enqueued: a stream of the rank's device.
    pub stream: B::Stream,
    /// The type of its elements.
    pub dtype: DType,
    /// How many there are along each axis.
    pub dims: Vec<usize>,
    /// Where their storage begins.
    pub address: u64,
    /// How many elements stand in the storage before the first one.
    pub start: usize,
}

/// What is done with one tensor a rank, all of one shape and dtype.
#[derive(Clone, Debug)]
pub enum Collective {
    /// Every rank gets the root's.
    Broadcast(Broadcast),
    /// Every rank gets its part along the axis. Shape, axis and output dtype are the tensors'.
    ReduceScatter(usize, ReduceScatter),
}

impl Collective {
    /// Enqueues for all of `ranks`, the handles that this thread drives, and waits for them: new tensors, in the order of
    /// the handles.
    ///
    /// `held` has one tensor for each handle: `seat` says where it is, or what is wrong with it. `new` makes a storage on its
    /// device, for a tensor of the given shape, and says where that begins; `tensor` makes a tensor of what was filled.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the tensors do not fit the handles or each other, and what the raw calls answer.
    /// [`Error::Driver`] where `new` fails.
    ///
    /// # Safety
    /// Until `held` is dropped, each seat's memory is valid and nobody writes to it but in order of its stream. What `new`
    /// makes is valid until dropped, has room for the shape, and is known to nobody else.
    pub unsafe fn run<B: Backend, H, N, T, E: Display>(
        self,
        ranks: &[RankComm<B>],
        held: Vec<H>,
        seat: impl Fn(&RankComm<B>, &H) -> Result<Seat<B>, String>,
        new: impl Fn(&H, &[usize]) -> Result<(u64, N), E>,
        tensor: impl Fn(N, Vec<usize>) -> T,
    ) -> Result<Vec<T>> {
        let operation = if matches!(self, Collective::Broadcast(_)) { "broadcast" } else { "reduce_scatter" };
        let invalid =
            |rank, expected, got| Error::InvalidArgument { operation, rank, argument: "tensors", expected, got };
        if ranks.is_empty() || held.len() != ranks.len() {
            let expected = format!("one for each of the {} handles, and a handle at least", ranks.len());
            return Err(invalid(None, expected, held.len().to_string()));
        }
        let mut seats = Vec::<Seat<B>>::new();
        for (comm, tensor) in ranks.iter().zip(&held) {
            let device = B::ordinal(&B::device_of(comm.stream()));
            let expected =
                format!("a contiguous tensor of one of crossccl's dtypes on the rank's device, {} {device}", B::NAME);
            let seat = seat(comm, tensor).map_err(|got| invalid(Some(comm.rank()), expected, got))?;
            let kind = |seat: &Seat<B>| format!("{} {:?}", seat.dtype, seat.dims);
            if let Some(first) = seats.first().map(kind).filter(|first| *first != kind(&seat)) {
                return Err(invalid(Some(comm.rank()), format!("{first}, as the first handle's"), kind(&seat)));
            }
            seats.push(seat);
        }
        let mut made = Vec::new();
        for ((comm, tensor), seat) in ranks.iter().zip(&held).zip(&seats) {
            let dims = self.output_dims(comm, &seat.dims)?;
            let (address, new) = new(tensor, &dims).map_err(|error| Error::Driver {
                backend: B::NAME,
                call: "new tensor",
                device: B::ordinal(&B::device_of(&seat.stream)),
                rank: Some(comm.rank()),
                code: 0,
                name: error.to_string(),
            })?;
            made.push((new, dims, address));
        }
        let mut launched = Vec::new();
        let all = ranks.iter().zip(&seats).zip(&made);
        let outcome = all.map(|((comm, seat), (_, _, recv))| {
            // SAFETY: the memory is as the caller promises, and room was made for what `output_dims` says. It is kept until
            // the launches are waited for; after a failure until `stop` says that nothing runs, or for good.
            launched.push(unsafe { self.launch(comm, seat, *recv)? });
            Ok(())
        });
        let outcome = outcome.collect::<Result<()>>().and_then(|()| launched.iter().try_for_each(Launched::wait));
        // A launch that failed may have left a kernel behind of which nothing is known: its communicator is poisoned then.
        let may_run = !launched.is_empty() || ranks.iter().any(|comm| comm.failure().is_some());
        // Each of them: nobody says that they are of one communicator.
        if outcome.is_err() && may_run && ranks.iter().any(|comm| comm.stop().is_err()) {
            forget((held, made));
            return outcome.map(|()| Vec::new());
        }
        outcome.map(|()| made.into_iter().map(|(new, dims, _)| tensor(new, dims)).collect())
    }

    fn output_dims<B: Backend>(&self, comm: &RankComm<B>, dims: &[usize]) -> Result<Vec<usize>> {
        let mut dims = dims.to_vec();
        if let Collective::ReduceScatter(axis, what) = self
            // An axis that is not there is told of by the launch.
            && let Some(extent) = dims.get_mut(*axis)
        {
            // An axis is cut in the same way whatever stands around it.
            *extent = comm.part(*extent, what.clone())?.count() as usize;
        }
        Ok(dims)
    }

    /// # Safety
    /// As for the `*_raw` methods of [`RankComm`], with `recv` for what `output_dims` says.
    unsafe fn launch<B: Backend>(&self, comm: &RankComm<B>, seat: &Seat<B>, recv: u64) -> Result<Launched<B>> {
        let Seat { stream, dtype, dims, address, start } = seat;
        let (send, count) = (address + (start * dtype.size()) as u64, dims.iter().product());
        let addresses = RawRank::new(send, recv);
        match self {
            // SAFETY: the caller's promise.
            Collective::Broadcast(what) => unsafe {
                comm.broadcast_raw(addresses, stream, count, *dtype, what.clone())
            },
            Collective::ReduceScatter(axis, what) => {
                let what = what.clone().axis(*axis as i64).shape(dims.clone()).output_dtype(*dtype);
                // SAFETY: as above.
                unsafe { comm.reduce_scatter_raw(addresses, stream, count, *dtype, what) }
            }
        }
    }
}
