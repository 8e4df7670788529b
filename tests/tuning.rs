//! Tuning files as a program meets them: given to the builder, and wrong ones. What the environment names is tested by the
//! command line's tests, which have processes of their own.
#![cfg(all(feature = "cpu", not(crossccl_no_kernels)))]
#![allow(missing_docs)]

use std::fs;

use crossccl::{
    Algorithm, Communicator, Cpu, DType, Error, Placement, Reason, Topology, Tuned, Tuning, TuningRow, Wiring,
};

const ROWS: &str = "version = 1

[[device]]
name = \"virtual device *\"
wiring = \"mesh\"
flight_ns = 3

[[row]]
device = \"virtual device * of * cores\"
placement = \"apart\"
ranks = 4
collective = \"broadcast\"
bytes_up_to = 4096
algorithm = \"two-stage-staged\"

[[row]]
device = \"virtual device *\"
placement = \"apart\"
ranks = 2
collective = \"reduce-scatter\"
algorithm = \"low-latency\"
";

fn tuned(ranks: usize, tuning: Tuning) -> Communicator<Cpu> {
    Communicator::<Cpu>::builder(0..ranks).tuning(tuning).build().expect("communicator")
}

#[test]
fn rows_of_a_file_decide() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.toml");
    fs::write(&path, ROWS).expect("write");
    let read = || Tuning::read(&path).expect("a tuning file");
    let comm = tuned(4, read());
    assert_eq!((comm.topology().wiring, comm.topology().flight_ns), (Wiring::Mesh, 3));
    let why = |count| comm.explain_broadcast(count, DType::F32, 0).expect("an explanation");
    let row = Reason::Row { source: path.display().to_string(), line: 8 };
    assert_eq!((why(1024).plan.algorithm, why(1024).reason), (Algorithm::TwoStageStaged, row));
    assert_eq!(why(1025).reason, Reason::Model);
    // What was chosen so works.
    let mut data: Vec<_> = (0..4).map(|r| comm.buffer_from(r, &[r as u32; 999]).expect("buffer")).collect();
    comm.broadcast_in_place(&mut data, 3).expect("launch").wait().expect("outcome");
    assert!(data.iter().all(|buffer| buffer.to_vec().expect("read") == [3; 999]));
    // Groups are tuned by their own size.
    let groups = crossccl::ReduceScatter::new(crossccl::ReduceOp::Sum).group_size(2);
    let scattered = comm.plan_reduce_scatter(0, 64, DType::F32, groups).expect("plan").algorithm;
    assert_eq!(scattered, Algorithm::LowLatency);
    // Larger than packets go: the row is passed over.
    let groups = crossccl::ReduceScatter::new(crossccl::ReduceOp::Sum).group_size(2);
    let scattered = comm.plan_reduce_scatter(0, 1 << 20, DType::F32, groups).expect("plan").algorithm;
    assert_eq!(scattered, Algorithm::OneStage);
}

/// What the program says of its links stands above files.
#[test]
fn the_builders_topology_is_the_last_word() {
    let tuning = Tuning::parse(ROWS, "rows").expect("a tuning file");
    let builder = Communicator::<Cpu>::builder(0..4).tuning(tuning);
    let comm = builder.topology(Topology::bus(7)).build().expect("communicator");
    assert_eq!(comm.topology(), Topology::bus(7));
    assert_eq!(Communicator::<Cpu>::builder(0..2).build().expect("communicator").topology().wiring, Wiring::Host);
    // One device, several ranks: still the host's memory.
    let comm = Communicator::<Cpu>::builder([0, 0]).virtual_ranks(true).build().expect("communicator");
    assert_eq!(comm.topology().wiring, Wiring::Host);
}

/// Rows are for ranks that have devices of their own, or for ranks that share.
#[test]
fn rows_by_placement() {
    let row = |placement, algorithm| {
        let mut row = TuningRow::new("virtual device *", placement, 2, Tuned::Broadcast);
        row.algorithm = Some(algorithm);
        row
    };
    let rows = [row(Placement::Apart, Algorithm::TwoStageStaged), row(Placement::Shared, Algorithm::LowLatency)];
    for (devices, algorithm) in [([0, 1], Algorithm::TwoStageStaged), ([0, 0], Algorithm::LowLatency)] {
        let tuning = Tuning::from_rows("mine", rows.clone()).expect("rows");
        let builder = Communicator::<Cpu>::builder(devices).virtual_ranks(true).tuning(tuning);
        let plan = builder.build().expect("communicator").plan_broadcast(64, DType::U8, 0).expect("plan");
        assert_eq!(plan.algorithm, algorithm, "{devices:?}");
    }
}

#[test]
fn files_that_cannot_be_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.toml");
    let text = |outcome: Result<Tuning, Error>| match outcome {
        Err(Error::Tuning { source_name, line, reason }) => {
            assert_eq!(source_name, path.display().to_string());
            (line, reason)
        }
        other => panic!("{other:?}"),
    };
    let text_of = |outcome: Result<Tuning, Error>| outcome.expect_err("no file of rows").to_string();
    let (line, reason) = text(Tuning::read(&path));
    assert!(line.is_none() && reason.starts_with("cannot open it: "), "{reason}");
    fs::write(&path, [0xff, 0xfe]).expect("write");
    assert!(text(Tuning::read(&path)).1.starts_with("cannot read it: "));
    fs::write(&path, ROWS.replace("apart", "near")).expect("write");
    let (line, reason) = text(Tuning::read(&path));
    assert_eq!(line, Some(10), "{reason}");
    let long = fs::File::create(&path).expect("create");
    long.set_len(5 << 20).expect("a long file");
    assert_eq!(text(Tuning::read(&path)), (None, "expected at most 4194304 bytes, got 5242880".into()));
    let folder = text_of(Tuning::read(folder.path()));
    assert!(folder.ends_with(": expected a regular file, got a folder"), "{folder}");
    // Opening a pipe that nobody writes to waited for ever.
    #[cfg(unix)]
    {
        fs::remove_file(&path).expect("remove");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        let expected = "expected a regular file, got a pipe, a socket or a device";
        assert_eq!(text(Tuning::read(&path)), (None, expected.into()));
    }
}
