//! The raw layer: addresses and streams of the caller's, and the one place where a collective's
//! launches are handed to a backend. The safe forms come through here as well.

#![allow(unsafe_code)]

#[cfg(all(test, feature = "cpu"))]
mod arguments_tests;

use std::{
    sync::{Arc, MutexGuard},
    time::Instant,
};

use smallvec::SmallVec;

use crate::{
    abi::{Arguments, form, hash},
    backend::{Backend, Fault, Unfit, profiler::Watched},
    collective::{Prepared, Span, Spans},
    communicator::{Called, Launch, Launches, RankState, Shared},
    error::{Error, Result},
    plan::{Algorithm, request::Collective},
    rank::Rank,
};

/// The addresses of one rank's call, in the memory of its device.
///
/// Aligned to the element; null is fine where there is nothing to read or write: `send` of a
/// broadcast's non-roots, and everything for a count of 0.
///
/// # What an engine brings
///
/// | | |
/// | --- | --- |
/// | devices | by ordinal, or opened already ([`Builder::devices`](crate::Builder::devices)); a rank keeps its device. Each is used in the context that frameworks share, and a thread's current one is as it was after every call |
/// | streams | with each call: any of the rank's device, default streams included, by the backend's `from_raw`. A call enqueues on the thread that makes it and waits for nothing; what follows in the stream comes after it. Where a rank changes its stream, the new one waits for the last launch on the old one |
/// | memory | by address, from any allocator, at any place in an allocation. The backend is asked whose it is and who reaches it, where it can tell |
/// | signal buffers | optional: [`Builder::signal_buffers`](crate::Builder::signal_buffers), or [`Builder::signal_addresses`](crate::Builder::signal_addresses) for memory of the engine's. [`signal_buffer_bytes`](crate::signal_buffer_bytes) says how large |
///
/// # Registration
///
/// There is none. All ranks are of one process, and addresses travel with each launch. Building a communicator enables
/// peer access between all devices. A kernel that touches memory its device cannot reach ends every context of the
/// process, so each call checks its addresses first, before anything is launched:
///
/// | memory | what the call does |
/// | --- | --- |
/// | plain, by the driver's ordinary allocation | peer access covers it |
/// | of a pool, allocated in the order of a stream | CUDA: the call grants the peers access to the whole pool. HIP does not tell the pool of an address: building the communicator grants access to each device's default and current pool, and memory of other pools is not checked |
/// | mapped by virtual memory management, as PyTorch's `expandable_segments` | the call grants the rank's device and the peers access to each mapped piece of the range. A hole in the range is refused |
/// | imported from another process, or of another context | CUDA: refused if the driver has no address of it for a device. HIP: not checked |
/// | managed, or of the host | refused |
/// | longer than its allocation | refused |
///
/// A refusal for a peer's device is [`Error::NotPeerAccessible`], any other is [`Error::InvalidArgument`]. Grants stay.
/// Do not take access back, disable peer access or unmap memory while a call or a graph uses it: a graph's replays are
/// not checked again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawRank {
    /// The rank's input.
    pub send: u64,
    /// The rank's output.
    pub recv: u64,
    /// Of a reduce-scatter: what is added to the result, of the output's shape and dtype. 0 for nothing;
    /// `recv` adds to what the output holds.
    pub residual: u64,
}

impl RawRank {
    /// An input and an output.
    pub const fn new(send: u64, recv: u64) -> Self {
        RawRank { send, recv, residual: 0 }
    }
}

/// A caller's stream must be of the rank's device. To be asked for all ranks before anything is launched.
pub(crate) fn check_stream<B: Backend>(
    shared: &Shared<B>,
    operation: &'static str,
    rank: usize,
    stream: &B::Stream,
) -> Result<()> {
    let device = &shared.ranks[rank].device;
    let elsewhere = elsewhere::<B>(device, stream).map_err(|f| shared.driver_error(rank, f))?;
    let Some(other) = elsewhere else { return Ok(()) };
    let expected = format!("a stream of the rank's device {}", B::ordinal(device));
    Err(crate::collective::invalid(operation, Some(rank), "stream", expected, format!("one of device {other}")))
}

/// The ordinal of the device that a stream is of, by whoever made it or by the driver, where it is not `device`.
pub(crate) fn elsewhere<B: Backend>(device: &B::Device, stream: &B::Stream) -> Result<Option<usize>, Fault> {
    let said = B::device_of(stream);
    let ordinal = if said == *device { B::ordinal_of(stream)? } else { B::ordinal(&said) };
    Ok((said != *device || ordinal != B::ordinal(device)).then_some(ordinal))
}

/// No rank's stream may wait for another's, which waits for it: work of theirs would never meet.
pub(crate) fn check_streams<B: Backend>(
    operation: &'static str,
    streams: &[B::Stream],
    error: impl Fn(usize, Fault) -> Error,
) -> Result<()> {
    for (rank, stream) in streams.iter().enumerate() {
        for (other, before) in streams[..rank].iter().enumerate() {
            if B::serialized(stream, before).map_err(|f| error(rank, f))? {
                let expected = "one that does not wait for another rank's".to_owned();
                let got = format!("{stream:?}, and rank {other} has {before:?}");
                return Err(crate::collective::invalid(operation, Some(rank), "stream", expected, got));
            }
        }
    }
    Ok(())
}

/// The same for a rank that calls for itself, whose peers' streams are those of their last launch: where one that has called
/// already waits for this call, and this call behind it in the order of a device's streams, neither would come. Told as a rank
/// that did not come in time, it misled: it had called.
fn check_not_behind_a_peer<B: Backend>(shared: &Shared<B>, prepared: &Prepared, stream: &B::Stream) -> Result<()> {
    let (me, size) = (prepared.rank, prepared.group_size);
    if shared.planner.facts.apart {
        return Ok(());
    }
    let fault = |f| shared.driver_error(me, f);
    let call = shared.next_call(me);
    let first = me / size * size;
    for other in (first..first + size).filter(|other| *other != me) {
        let Some((last, event)) = shared.launched_from(other, call) else { continue };
        // In this order: once it is over, the caller may have destroyed its stream.
        if !B::is_capturing(stream).map_err(fault)?
            && !B::wait(&event, Some(Instant::now())).map_err(fault)?
            && B::serialized(stream, &last).map_err(fault)?
        {
            let expected = "one that does not wait for another rank's".to_owned();
            let got = format!("{stream:?}, and rank {other}, which waits for this call, has {last:?}");
            return Err(crate::collective::invalid(prepared.request.name(), Some(me), "stream", expected, got));
        }
    }
    Ok(())
}

/// What a rank's launch touches on its own device, for backends that know memory of the caller's. To be asked
/// for all ranks before anything is launched.
pub(crate) fn check_memory<B: Backend>(shared: &Shared<B>, prepared: &Prepared) -> Result<()> {
    let Prepared { rank, group_size, request, .. } = prepared;
    let Spans { input, output, residual } = prepared.spans();
    let first = rank / group_size * group_size;
    let peers: SmallVec<[&B::Device; 8]> = shared.ranks[first..first + group_size].iter().map(|r| &r.device).collect();
    let operation = request.name();
    let device = &shared.ranks[*rank].device;
    // Once for all: to change what is current takes a driver as long as to answer.
    let _entered = B::enter(device).map_err(|fault| shared.driver_error(*rank, fault))?;
    let mut checked: SmallVec<[Span; 3]> = SmallVec::new();
    for (argument, span) in [("input", input), ("output", output), ("residual", residual)] {
        let Span { address, bytes } = span;
        // In place, one lies within the other.
        if address == 0 || bytes == 0 || checked.iter().any(|other| span.lies_within(*other)) {
            continue;
        }
        checked.push(span);
        B::check_memory(device, &peers, address, bytes as usize).map_err(|unfit| match unfit {
            Unfit::Wrong { expected, got } => {
                crate::collective::invalid(operation, Some(*rank), argument, expected, got)
            }
            Unfit::Unknown(fault) => shared.driver_error(*rank, fault),
            Unfit::Unreachable { peer, reason } => Error::NotPeerAccessible {
                operation,
                rank: Rank::from_index(*rank),
                argument,
                peer: Rank::from_index(first + peer),
                reason,
            },
        })?;
    }
    Ok(())
}

/// Enqueues one rank's prepared launch, a call of its own. On an error nothing of it is enqueued, or the communicator is
/// poisoned for good.
///
/// # Safety
/// The memory that `prepared` names is valid as the `*_raw` methods of
/// [`RankComm`](crate::RankComm) ask.
pub(crate) unsafe fn enqueue<B: Backend>(
    shared: &Arc<Shared<B>>,
    prepared: &Prepared,
    stream: &B::Stream,
) -> Result<Launch<B>> {
    let _range = prepared.watched.as_ref().map(Watched::range);
    check_not_behind_a_peer(shared, prepared, stream)?;
    // SAFETY: the caller's promise.
    unsafe { enqueue_one(shared, prepared, stream, Owner::Caller) }
}

/// Whose the memory of a launch is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Buffers, which are kept until the launch is over.
    Buffers,
    /// The caller's, who keeps it.
    Caller,
}

/// The same, as a part of a call.
///
/// # Safety
/// As for [`enqueue`].
unsafe fn enqueue_one<B: Backend>(
    shared: &Arc<Shared<B>>,
    prepared: &Prepared,
    stream: &B::Stream,
    owner: Owner,
) -> Result<Launch<B>> {
    let rank = &prepared.rank;
    let me = &shared.ranks[*rank];
    let _span = prepared.span.enter();
    let fault = |f| shared.driver_error(*rank, f);
    if B::is_inline(stream) {
        shared.refuse_two_ranks_of_one_thread(prepared.request.name(), *rank)?;
    }
    let mut state = shared.begin(*rank)?;
    let _entered = B::enter(&me.device).map_err(fault)?;
    let captured = B::is_capturing(stream).map_err(fault)?;
    // Into a capture that the communicator did not begin: how often it runs, nobody here is told.
    let foreign = captured && state.counting.is_none();
    if foreign && owner == Owner::Buffers {
        return Err(Error::Busy {
            operation: prepared.request.name(),
            what: format!(
                "the stream of rank {rank} is being captured, and the graph could outlive the buffers; use the raw \
                 forms, or `record`"
            ),
        });
    }
    shared.refuse_without(*rank, prepared.request.name(), shared.domain_of(prepared.group_size), 1)?;
    // One launch in flight per rank: another stream of the rank waits for the one before.
    if let Some((last, event)) = &state.last
        && last != stream
    {
        if captured {
            return Err(Error::Busy {
                operation: prepared.request.name(),
                what: format!(
                    "a capture cannot wait for what rank {rank} enqueued on another stream ({last:?}); capture that \
                     stream, or give the communicator this one"
                ),
            });
        }
        B::wait_event(stream, event).map_err(fault)?;
    }
    // SAFETY: the caller's promise.
    let call = unsafe { launch(shared, prepared, stream, &mut state, captured)? };
    // What was captured has not run, and may run any number of times: `Graph` waits for those.
    let event = if captured { None } else { Some(mark_end(shared, *rank, state, stream)?) };
    let (generation, limit) = (shared.generation(), prepared.limit);
    Ok(Launch { rank: *rank, call, event, foreign, generation, limit, replay: false })
}

/// Enqueues a launch on `stream`, whatever stands before it: the number of the call.
///
/// # Safety
/// As for [`enqueue`].
unsafe fn launch<B: Backend>(
    shared: &Shared<B>,
    prepared: &Prepared,
    stream: &B::Stream,
    state: &mut RankState<B>,
    captured: bool,
) -> Result<u64> {
    let Prepared { rank, group_size, plan, .. } = prepared;
    let me = &shared.ranks[*rank];
    let fault = |f| shared.driver_error(*rank, f);
    let call = state.next_call;
    let arguments = arguments(shared, prepared, call);
    if *group_size == 1 && arguments.form == form::PLAIN {
        copy_alone::<B>(prepared, stream).map_err(fault)?;
    } else {
        // SAFETY: signal buffers and control live as long as `shared`, which drains the streams
        // before it lets them go; the rest is the caller's promise.
        unsafe { B::launch(stream, plan.kernel, me.functions[plan.kernel.index()], plan.blocks, &arguments) }
            .map_err(fault)?;
    }
    state.next_call += 1;
    let called = Called::new(call, prepared, shared);
    if captured {
        shared.count_captured(state, called, *rank);
    } else {
        let epoch = me.count(called.domain, 1);
        state.remember(Called { epoch, ..called });
    }
    Ok(call)
}

/// Captures one rank's launches into a graph, on a stream that nobody else knows.
///
/// # Safety
/// As for [`enqueue`], for each launch of the graph.
pub(crate) unsafe fn capture<'a, B: Backend>(
    shared: &Shared<B>,
    rank: usize,
    prepared: impl Iterator<Item = &'a Prepared>,
) -> Result<(B::Graph, Launches)> {
    let fault = |f| shared.driver_error(rank, f);
    let device = &shared.ranks[rank].device;
    let mut state = shared.begin(rank)?;
    let _entered = B::enter(device).map_err(fault)?;
    let stream = B::create_stream(device).map_err(fault)?;
    B::begin_capture(&stream).map_err(fault)?;
    state.counting = Some(Launches::new());
    let mut outcome = Ok(());
    for one in prepared {
        // SAFETY: the caller's promise.
        outcome = unsafe { launch(shared, one, &stream, &mut state, true) }.map(drop);
        if outcome.is_err() {
            break;
        }
    }
    let launches = state.counting.take().unwrap_or_default();
    let graph = B::end_capture(&stream).map_err(fault);
    outcome.and(graph).map(|graph| (graph, launches))
}

/// The same for a replay: it owns the memory, keeps writes from the host away while it is in flight, and after a failure
/// until reset.
pub(crate) fn capture_owned<'a, B: Backend>(
    shared: &Shared<B>,
    rank: usize,
    prepared: impl Iterator<Item = &'a Prepared>,
) -> Result<(B::Graph, Launches)> {
    // SAFETY: as said.
    unsafe { capture(shared, rank, prepared) }
}

/// The point behind what was just launched on `stream`, for whoever waits and for the rank's next launch.
pub(crate) fn mark_end<B: Backend>(
    shared: &Shared<B>,
    rank: usize,
    mut state: MutexGuard<'_, RankState<B>>,
    stream: &B::Stream,
) -> Result<B::Event> {
    match B::record(stream) {
        Ok(event) => {
            state.last = Some((stream.clone(), event.clone()));
            Ok(event)
        }
        // A kernel runs whose end cannot be known: nothing it may touch is ever given back or reused.
        Err(fault) => {
            state.lost = true;
            drop(state);
            let error = shared.driver_error(rank, fault);
            shared.abort(error.clone());
            Err(error)
        }
    }
}

/// A group of one rank.
fn copy_alone<B: Backend>(prepared: &Prepared, stream: &B::Stream) -> Result<(), Fault> {
    let bytes = prepared.request.bytes() as usize;
    let RawRank { send, recv, .. } = prepared.addresses;
    if bytes == 0 || send == recv {
        return Ok(());
    }
    // SAFETY: the caller's promise, as for a launch; sizes were validated to fit a usize.
    unsafe { B::copy(stream, recv, send, bytes) }
}

fn arguments<B: Backend>(shared: &Shared<B>, prepared: &Prepared, call: u64) -> Arguments {
    let Prepared { rank, group_size, request, plan, addresses, limit, strict, .. } = prepared;
    let me = &shared.ranks[*rank];
    let first = rank / group_size * group_size;
    let packed = request.packed(plan).to_word();
    let shape_hash = request.shape_hash();
    let fingerprint = hash([
        packed,
        shape_hash,
        request.count,
        *group_size as u64,
        shared.planner.facts.payload_half,
        plan.segment,
        u64::from(plan.rounds),
    ]) & 0xffff_ffff_ffff;
    let domain = shared.domain_of(*group_size);
    let mut a = Arguments {
        control: me.control.address(),
        at: shared.layout.places(domain),
        rank: (rank - first) as u32,
        ranks: *group_size as u32,
        domain: domain as u32,
        max_blocks: shared.planner.facts.max_blocks,
        world: shared.ranks.len() as u32,
        world_rank: *rank as u32,
        strict: u64::from(*strict),
        call,
        limit: limit.map_or(0, |l| me.ticks(l)),
        input: addresses.send,
        output: addresses.recv,
        residual: addresses.residual,
        count: request.count,
        shape_hash,
        packed,
        fingerprint,
        bytes: request.bytes(),
        segment: plan.segment,
        payload_half: shared.planner.facts.payload_half,
        rounds: plan.rounds,
        overlap: plan.overlap as u64,
        ..Arguments::default()
    };
    for (slot, peer) in a.signal.iter_mut().zip(&shared.ranks[first..first + group_size]) {
        *slot = peer.signal.address();
    }
    match &request.collective {
        Collective::Broadcast { root } => a.root = *root as u32,
        Collective::ReduceScatter { op, partition, output, factor, .. } => {
            let part = partition.part(rank - first);
            if plan.algorithm == Algorithm::LowLatency && request.count > 0 {
                // The plan has seen that these are few.
                for (cut, peer) in a.cuts.iter_mut().zip(0..*group_size) {
                    *cut = partition.part(peer).offset as u32;
                }
                a.cuts[*group_size] = part.stride as u32;
            }
            a.outer = part.outer;
            a.run = part.run;
            a.stride = part.stride;
            a.offset = part.offset;
            a.average = u32::from(*op == crate::op::ReduceOp::Average);
            a.factor = factor.to_bits();
            if *output != request.dtype || *factor != 1.0 || addresses.residual != 0 {
                a.form = output.form();
            }
        }
    }
    a
}

/// One call does not drive several ranks where one of their streams is inline: who waits for one does nothing for the
/// others.
fn check_inline<B: Backend>(prepared: &[Prepared], stream: impl Fn(usize) -> B::Stream) -> Result<()> {
    if !B::INLINE || prepared.len() < 2 {
        return Ok(());
    }
    match prepared.iter().find(|one| one.group_size > 1 && B::is_inline(&stream(one.rank))) {
        None => Ok(()),
        Some(one) => Err(Error::Unsupported {
            operation: one.request.name(),
            what: format!(
                "the stream of rank {} is inline, and who waits for one rank does nothing for the others; call for each \
                 rank on a thread of its own (into_ranks), or build the communicator without inline_streams",
                one.rank
            ),
        }),
    }
}

/// Enqueues the launches of all ranks, and puts them into `launches` one by one: after an error, the caller
/// aborts and waits for those that are there, so that no rank is left waiting and no memory is let go under it.
///
/// # Safety
/// As for [`enqueue`].
pub(crate) unsafe fn enqueue_all<B: Backend>(
    shared: &Arc<Shared<B>>,
    prepared: &[Prepared],
    stream: impl Fn(usize) -> B::Stream,
    launches: &mut SmallVec<[Launch<B>; 8]>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { enqueue_each(shared, prepared, stream, launches, Owner::Caller) }
}

/// # Safety
/// As for [`enqueue`].
unsafe fn enqueue_each<B: Backend>(
    shared: &Arc<Shared<B>>,
    prepared: &[Prepared],
    stream: impl Fn(usize) -> B::Stream,
    launches: &mut SmallVec<[Launch<B>; 8]>,
    owner: Owner,
) -> Result<()> {
    check_inline::<B>(prepared, &stream)?;
    // One for the call: the ranks' parts of it have the same name.
    let _range = prepared.first().and_then(|one| one.watched.as_ref()).map(Watched::range);
    for one in prepared {
        // SAFETY: the caller's promise.
        launches.push(unsafe { enqueue_one(shared, one, &stream(one.rank), owner)? });
    }
    Ok(())
}

/// The safe forms: the views are owners of what the prepared launches name.
pub(crate) fn enqueue_owned<B: Backend>(
    shared: &Arc<Shared<B>>,
    prepared: &[Prepared],
    launches: &mut SmallVec<[Launch<B>; 8]>,
) -> Result<()> {
    let stream = |rank: usize| shared.ranks[rank].stream.clone();
    // SAFETY: `prepared` was made from views; the caller keeps their owners until the launches are
    // complete, or, after a failure, until reset, and leaks those of a launch whose end is not known. Reads and writes from the host go through the same
    // streams, and borrows of the buffers exclude others.
    unsafe { enqueue_each(shared, prepared, stream, launches, Owner::Buffers) }
}

/// Launches of a kernel of the peer self-test on all ranks, waited for: where one fails, what the others touch is
/// given back after them, or never.
pub(crate) fn self_test<B: Backend>(shared: &Shared<B>, kernel: crate::plan::Kernel, deadline: Instant) -> Result<()> {
    launch_self_test(shared, kernel, deadline).inspect_err(|_| {
        let at_rest = |stream| B::record(stream).and_then(|event| B::wait(&event, Some(deadline))).unwrap_or(false);
        if !shared.ranks.iter().all(|rank| at_rest(&rank.stream)) {
            shared.leak();
        }
    })
}

fn launch_self_test<B: Backend>(shared: &Shared<B>, kernel: crate::plan::Kernel, deadline: Instant) -> Result<()> {
    let mut events = Vec::new();
    for (rank, me) in shared.ranks.iter().enumerate() {
        let fault = |f| shared.driver_error(rank, f);
        let mut a = Arguments {
            rank: rank as u32,
            world: shared.ranks.len() as u32,
            at: shared.layout.places(0),
            ..Arguments::default()
        };
        for (slot, peer) in a.signal.iter_mut().zip(&shared.ranks) {
            *slot = peer.signal.address();
        }
        // SAFETY: the kernels touch the probe slots of the signal buffers only.
        unsafe { B::launch(&me.stream, kernel, me.functions[kernel.index()], 1, &a) }.map_err(fault)?;
        events.push(B::record(&me.stream).map_err(fault)?);
    }
    for (rank, event) in events.iter().enumerate() {
        if !B::wait(event, Some(deadline)).map_err(|f| shared.driver_error(rank, f))? {
            return Err(Error::PeerSelfTest { from: crate::Rank::from_index(rank), to: crate::Rank::from_index(rank) });
        }
    }
    Ok(())
}
