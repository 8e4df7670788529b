use std::{fmt, time::Duration};

use crate::{
    backend::{Backend, Fault},
    rank::Rank,
};

/// What a crossccl call returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. The variants tell apart a mistake of the caller, of a peer, and a
/// fault of the machine; the text says what, where, why and what to do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The caller's mistake: found before anything was launched or written.
    InvalidArgument {
        /// The call.
        operation: &'static str,
        /// The rank whose argument it is, where it belongs to one.
        rank: Option<Rank>,
        /// The argument.
        argument: &'static str,
        /// What was expected.
        expected: String,
        /// What came.
        got: String,
    },
    /// Valid, but not offered (by this version or by this backend). Nothing was launched.
    Unsupported {
        /// The call.
        operation: &'static str,
        /// What is not offered, and what to use instead.
        what: String,
    },
    /// Two devices cannot reach each other's memory.
    PeerAccess {
        /// The rank that would read or write.
        from: Rank,
        /// The rank whose memory it cannot reach.
        to: Rank,
        /// The driver's reason.
        reason: String,
    },
    /// The machine reports peer access, but what one rank wrote to the other did not arrive intact.
    PeerSelfTest {
        /// The rank that wrote and read back.
        from: Rank,
        /// The rank whose memory it used.
        to: Rank,
    },
    /// A driver or operating-system call failed.
    Driver {
        /// The backend.
        backend: &'static str,
        /// The call that failed.
        call: &'static str,
        /// The device.
        device: usize,
        /// The rank, where the call was made for one.
        rank: Option<Rank>,
        /// The driver's code.
        code: i64,
        /// The code's name or text.
        name: String,
    },
    /// Ranks did not come within the time limit. Buffers of the call stay borrowed until `reset`.
    Timeout {
        /// The collective.
        operation: &'static str,
        /// The rank that waited.
        rank: Rank,
        /// Its launch epoch: 1 for the first collective of the group, counted by the device.
        sequence: u64,
        /// Who did not make the call that the others wait for, directly or behind another call. If all made it: whose
        /// launch did not begin, or is stuck in a later step.
        missing: Vec<Rank>,
        /// How long it waited.
        waited: Duration,
        /// What the missing ranks were last seen doing, and which ranks came but wait behind them.
        note: String,
    },
    /// Ranks called different operations, or with different arguments.
    Mismatch {
        /// The collective, as the rank that noticed called it.
        operation: &'static str,
        /// The first argument that differs: `collective`, `dtype`, `op`, `count`, `root`, `axis`,
        /// `shape`, `algorithm`, `blocks`, `plan`, or `order` where a rank has gone on to a later call.
        field: &'static str,
        /// Each rank's value, for the ranks whose call was seen.
        values: Vec<(Rank, String)>,
    },
    /// Memory of the caller's that another rank's device cannot reach.
    NotPeerAccessible {
        /// The collective.
        operation: &'static str,
        /// Whose memory it is.
        rank: Rank,
        /// Which argument.
        argument: &'static str,
        /// The rank that would have to reach it.
        peer: Rank,
        /// What the driver says.
        reason: String,
    },
    /// There is no memory for a signal buffer that other devices see and write while kernels run.
    SignalMemoryNotCoherent {
        /// The backend.
        backend: &'static str,
        /// The device.
        device: usize,
        /// Whose signal buffer it would be, where it was asked for one.
        rank: Option<Rank>,
        /// What was tried or given.
        reason: String,
    },
    /// A rank that the call needs will not come: its handle is gone. Groups without it go on, after a `reset` by the handles
    /// that are left where something had failed; everything else needs a new communicator.
    RankGone {
        /// The collective.
        operation: &'static str,
        /// A rank that needs it.
        rank: Rank,
        /// The rank that is gone.
        gone: Rank,
        /// How it went.
        reason: String,
    },
    /// [`abort`](crate::Communicator::abort) was called.
    Aborted,
    /// An earlier collective failed; the communicator refuses work until `reset`.
    Poisoned {
        /// Why the earlier collective failed.
        cause: Box<Error>,
    },
    /// The object is in use by something else at the moment.
    Busy {
        /// The call.
        operation: &'static str,
        /// What uses it and what to do.
        what: String,
    },
    /// A tuning file, or rows of a program's own, that cannot be used. Nothing of it is.
    Tuning {
        /// The file, or what the rows were called.
        source_name: String,
        /// The line, from 1, where there is one.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// The backend was not compiled in, or its kernels were not.
    NotCompiled {
        /// The cargo feature that brings it.
        feature: &'static str,
        /// The backend is there, built with `CROSSCCL_KERNELS=off`: its kernels alone are missing.
        kernels: bool,
    },
    /// The backend is compiled in, but has no device here.
    NoDevice {
        /// The backend.
        backend: &'static str,
        /// What was looked for.
        reason: String,
    },
}

impl Error {
    pub(crate) fn poisoned(cause: &Error) -> Error {
        match cause {
            Error::Poisoned { .. } => cause.clone(),
            _ => Error::Poisoned { cause: Box::new(cause.clone()) },
        }
    }

    /// Of a fault that says so.
    pub(crate) fn not_coherent<B: Backend>(device: &B::Device, rank: Option<Rank>, fault: &Fault) -> Error {
        let reason = format!("{} answered {}: {}", fault.call, fault.code, fault.name);
        Error::SignalMemoryNotCoherent { backend: B::NAME, device: B::ordinal(device), rank, reason }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Poisoned { cause } => Some(&**cause),
            _ => None,
        }
    }
}

struct Waited(Duration);

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            short if short < Duration::from_secs(1) => write!(f, "{} ms", short.as_millis()),
            long => write!(f, "{:.1} s", long.as_secs_f64()),
        }
    }
}

struct List<'a>(&'a [Rank]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (i, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument { operation, rank, argument, expected, got } => {
                write!(f, "{operation}: {argument}")?;
                if let Some(rank) = rank {
                    write!(f, " of rank {rank}")?;
                }
                write!(f, ": expected {expected}, got {got}")
            }
            Error::Unsupported { operation, what } => write!(f, "{operation}: {what}"),
            Error::PeerAccess { from, to, reason } => write!(
                f,
                "rank {from} cannot reach the memory of rank {to} ({reason}); \
                 use devices that are linked to each other"
            ),
            Error::PeerSelfTest { from, to } => write!(
                f,
                "what rank {from} wrote to the memory of rank {to} did not arrive intact although the \
                 driver reports peer access; check IOMMU and PCIe access control (ACS) settings"
            ),
            Error::Driver { backend, call, device, rank, code, name } => {
                write!(f, "{backend} device {device}")?;
                if let Some(rank) = rank {
                    write!(f, " (rank {rank})")?;
                }
                write!(f, ": {call} failed with code {code}: {name}")
            }
            Error::Timeout { operation, rank, sequence, missing, waited, note } => {
                write!(
                    f,
                    "{operation} number {sequence} on rank {rank}: waited {} for {}",
                    Waited(*waited),
                    List(missing)
                )?;
                if !note.is_empty() {
                    write!(f, " ({note})")?;
                }
                f.write_str("; call reset on all ranks to go on")
            }
            Error::Mismatch { operation, field, values } => {
                write!(f, "{operation}: the ranks disagree on {field}:")?;
                for (i, (rank, value)) in values.iter().enumerate() {
                    write!(f, "{} rank {rank} has {value}", if i == 0 { "" } else { "," })?;
                }
                f.write_str("; call reset on all ranks to go on")
            }
            Error::NotPeerAccessible { operation, rank, argument, peer, reason } => write!(
                f,
                "{operation}: the device of rank {peer} cannot reach the {argument} of rank {rank}: {reason}; \
                 allocate it with peer access, or use buffers of the communicator"
            ),
            Error::SignalMemoryNotCoherent { backend, device, rank, reason } => {
                write!(f, "{backend} device {device}")?;
                if let Some(rank) = rank {
                    write!(f, " (rank {rank})")?;
                }
                write!(
                    f,
                    ": no memory for signals that is coherent between devices while kernels run: {reason}; use a device \
                     and driver that have it, and the builder's own signal buffers or ones by Buffer::coherent"
                )
            }
            Error::RankGone { operation, rank, gone, reason } => write!(
                f,
                "{operation} on rank {rank}: rank {gone} is gone ({reason}); groups without it can go on, after a reset by all \
                 handles that are left; for others build a new communicator"
            ),
            Error::Aborted => f.write_str("aborted; call reset on all ranks to go on"),
            Error::Poisoned { cause } => {
                write!(f, "the communicator refuses work since an earlier collective failed: {cause}")
            }
            Error::Busy { operation, what } => write!(f, "{operation}: {what}"),
            Error::Tuning { source_name, line, reason } => {
                write!(f, "tuning: {source_name}")?;
                if let Some(line) = line {
                    write!(f, ", line {line}")?;
                }
                write!(f, ": {reason}")
            }
            Error::NotCompiled { feature, kernels: false } => {
                write!(f, "this build has no {feature} backend; build with `--features {feature}`")
            }
            Error::NotCompiled { feature, kernels: true } => write!(
                f,
                "this build has the {feature} backend without its kernels, since it was built with CROSSCCL_KERNELS=off; \
                 build again without that variable"
            ),
            Error::NoDevice { backend, reason } => write!(f, "no {backend} device: {reason}"),
        }
    }
}
