//! A stream of the engine's that another device has, for the tests on the stand-ins of the drivers.

use crossccl::{Backend, Communicator, DType, Error, Rank, RawRank};

/// It is refused, before anything is launched, by what takes streams; the driver is asked once of each by `question`, and one that
/// does not answer is told of. `take` names a handle for a device; `arm` makes a call of the stand-in's fail, `fired` says
/// which did.
pub(crate) fn is_refused<B: Backend>(
    comm: &Communicator<B>,
    question: &str,
    take: impl Fn(&B::Device, &B::Stream) -> B::Stream,
    arm: impl Fn(&str),
    fired: impl Fn() -> String,
) {
    let device = |ordinal| B::open(ordinal).expect("device");
    let made = [0, 1].map(|ordinal| B::create_stream(&device(ordinal)).expect("stream"));
    let taken = |ordinal, of: usize| take(&device(ordinal), &made[of]);
    let data = [0, 1].map(|rank| comm.buffer_from(rank, &[rank as u8; 100]).expect("buffer"));
    let ranks = data.each_ref().map(|one| RawRank::new(one.address(), one.address()));
    // SAFETY: buffers of that size, which live until the end; waited for.
    let broadcast = |streams: &[B::Stream; 2]| unsafe {
        comm.broadcast_raw(&ranks, streams, 100, DType::U8, 0).and_then(|launched| launched.wait())
    };
    let refused = |operation, expected: &str, got: &str| {
        Err(Error::InvalidArgument {
            operation,
            rank: Some(Rank(1)),
            argument: "stream",
            expected: expected.into(),
            got: got.into(),
        })
    };
    let (expected, got) = ("a stream of the rank's device 1", "one of device 0");
    assert_eq!(broadcast(&[taken(0, 0), taken(1, 0)]), refused("broadcast", expected, got));
    // SAFETY: nothing is captured.
    let captured = unsafe { comm.capture(&[taken(0, 0), taken(1, 0)], || Ok(())) };
    assert_eq!(captured.map(drop), refused("capture", expected, got));
    let built = Communicator::<B>::builder(0..2).streams([taken(0, 0), taken(1, 0)]).build();
    assert_eq!(built.map(drop), refused("communicator", "one on the rank's device 1", "one on device 0"));
    assert_eq!(data[1].to_vec(), Ok(vec![1; 100]));

    let right = [taken(0, 0), taken(1, 1)];
    arm(&format!("{question}:2:719"));
    let outcome = broadcast(&right);
    let told = matches!(&outcome, Err(Error::Driver { call, rank: Some(Rank(1)), code: 719, .. }) if *call == question);
    assert!(told, "{outcome:?}");
    arm("");
    assert_eq!(broadcast(&right), Ok(()));
    assert_eq!(data[1].to_vec(), Ok(vec![0; 100]));
    arm(&format!("{question}:1:719"));
    assert_eq!((broadcast(&right), fired()), (Ok(()), String::new()), "asked again");
    // A driver that cannot tell is believed the caller.
    arm(&format!("{question}:1:801"));
    assert_eq!((broadcast(&[taken(0, 0), taken(1, 1)]), fired()), (Ok(()), question.into()));
    arm("");
}
