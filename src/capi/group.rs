//! The groups of one thread: calls that were checked, and wait for the end of the group to be launched.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use super::{
    handle::Handle,
    outcome::{Failure, Result},
};
use crate::{
    collective::{self, Prepared},
    error::Error,
    plan::request::Collective,
};

struct Call {
    handle: Arc<Handle>,
    prepared: Prepared,
    stream: usize,
}

struct Group {
    depth: usize,
    calls: Vec<Call>,
    failure: Option<Failure>,
}

thread_local! {
    static GROUP: RefCell<Group> = const { RefCell::new(Group { depth: 0, calls: Vec::new(), failure: None }) };
}

/// The thread's group. A thread that is ending has lost it, and is in none.
fn with_group<T>(body: impl FnOnce(&mut Group) -> T) -> Option<T> {
    GROUP.try_with(|group| body(&mut group.borrow_mut())).ok()
}

fn is_open() -> bool {
    with_group(|group| group.depth > 0).unwrap_or(false)
}

pub(super) fn start(call: &'static str) -> Result<()> {
    with_group(|group| group.depth += 1).ok_or_else(|| {
        let what = "this thread is ending, and begins no group any more";
        Error::Busy { operation: call, what: what.into() }.into()
    })
}

/// The first failure inside a group is what the group fails with.
pub(super) fn failed(failure: &Failure) {
    with_group(|group| {
        if group.depth > 0 {
            group.failure.get_or_insert_with(|| failure.clone());
        }
    });
}

/// For what would wait for calls that the group has not launched yet.
pub(super) fn refuse(call: &'static str) -> Result<()> {
    refuse_if(call, is_open())
}

/// For what ends a handle: its communicator has calls in the group. Another one may go, since who collects garbage cannot choose
/// when; once that made a group of calls on another communicator fail.
pub(super) fn refuse_end_of(call: &'static str, handle: &Handle) -> Result<()> {
    let has = |group: &mut Group| group.depth > 0 && group.calls.iter().any(|one| one.handle.is_peer_of(handle));
    refuse_if(call, with_group(has).unwrap_or(false))
}

fn refuse_if(call: &'static str, refused: bool) -> Result<()> {
    if !refused {
        return Ok(());
    }
    let what = "not inside a group, whose calls are launched by crosscclGroupEnd; call it afterwards";
    Err(Error::Busy { operation: call, what: what.into() }.into())
}

/// Launches now, or with the group that this thread is in.
///
/// # Safety
/// As for [`enqueue`](crate::raw::enqueue), from now on.
pub(super) unsafe fn submit(call: &'static str, handle: Arc<Handle>, prepared: Prepared, stream: usize) -> Result<()> {
    if is_open() {
        with_group(|group| group.calls.push(Call { handle, prepared, stream }));
        return Ok(());
    }
    // SAFETY: the caller's promise.
    handle.with(call, |seat| unsafe { seat.launch(&prepared, stream) })
}

/// # Safety
/// As for [`enqueue`](crate::raw::enqueue), for the calls of the group.
pub(super) unsafe fn end(call: &'static str) -> Result<()> {
    let ended = with_group(|group| {
        group.depth = group.depth.checked_sub(1)?;
        // An inner group ends with the outer one.
        Some(if group.depth == 0 {
            (std::mem::take(&mut group.calls), group.failure.take())
        } else {
            (Vec::new(), None)
        })
    });
    let Some((calls, failure)) = ended.flatten() else {
        let what = "no group of this thread was begun; call crosscclGroupStart first";
        return Err(Error::Busy { operation: call, what: what.into() }.into());
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    check_together(&calls)?;
    for (at, one) in calls.iter().enumerate() {
        // SAFETY: the caller's promise.
        let outcome = one.handle.with(call, |seat| unsafe { seat.launch(&one.prepared, one.stream) });
        if let Err(failure) = outcome {
            // Ranks that were launched would wait for these, and fail as this one did; those of another communicator are
            // stopped. One of which nothing was launched is left alone.
            let waits = |missing: &Call| calls[..at].iter().any(|one| one.handle.is_peer_of(&missing.handle));
            for missing in calls[at..].iter().filter(|missing| waits(missing)) {
                let own = failure.cause.as_deref().filter(|_| missing.handle.is_peer_of(&one.handle));
                missing.handle.abort(match own {
                    Some(Error::Poisoned { cause }) => (**cause).clone(),
                    own => own.cloned().unwrap_or(Error::Aborted),
                });
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// What ranks that are to meet in this group ask for together: the same, in memory that does not overlap. What a call of one rank
/// can be asked was asked when it came.
fn check_together(calls: &[Call]) -> Result<()> {
    let mut before: BTreeMap<(usize, usize, usize), u64> = BTreeMap::new();
    let mut meetings: BTreeMap<(usize, usize, usize, u64), Vec<&Prepared>> = BTreeMap::new();
    for Call { handle, prepared, .. } in calls {
        let (identity, size) = (handle.identity(), prepared.group_size);
        // Where somebody else's graphs launch some of them, it cannot be told which calls meet.
        let Some(launched) = handle.launched(size) else { continue };
        let earlier = before.entry((identity, handle.rank, size)).or_default();
        let meeting = (identity, size, handle.rank / size, launched + *earlier);
        *earlier += 1;
        meetings.entry(meeting).or_default().push(prepared);
    }
    for meeting in meetings.values() {
        check_equal(meeting)?;
        collective::check_overlaps(meeting)?;
    }
    Ok(())
}

/// Calls of several ranks that are to meet must ask for the same: told before anything is launched, where one call speaks for
/// them all.
fn check_equal(calls: &[&Prepared]) -> Result<()> {
    let Some((first, rest)) = calls.split_first() else { return Ok(()) };
    let asked = |one: &Prepared| {
        let (op, root) = match one.request.collective {
            Collective::Broadcast { root } => (None, Some(root)),
            Collective::ReduceScatter { op, .. } => (Some(op), None),
        };
        (one.request.name(), one.request.dtype, op, root, one.request.count)
    };
    let (name, dtype, op, root, count) = asked(first);
    for one in rest {
        let theirs = asked(one);
        let as_first = |what: String| format!("{what}, as rank {}", first.rank);
        let refuse = |argument, expected: String, got: String| {
            Err(collective::invalid(theirs.0, Some(one.rank), argument, as_first(expected), got).into())
        };
        if theirs.0 != name {
            return refuse("collective", name.to_owned(), theirs.0.to_owned());
        }
        if theirs.1 != dtype {
            return refuse("dtype", dtype.to_string(), theirs.1.to_string());
        }
        if let (true, Some(op), Some(other)) = (theirs.2 != op, op, theirs.2) {
            return refuse("op", op.to_string(), other.to_string());
        }
        if let (true, Some(root), Some(other)) = (theirs.3 != root, root, theirs.3) {
            return refuse("root", root.to_string(), other.to_string());
        }
        if theirs.4 != count {
            return refuse("count", format!("{count} elements"), theirs.4.to_string());
        }
    }
    Ok(())
}
