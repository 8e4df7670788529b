//! What a collective tells a `tracing` subscriber.
#![cfg(feature = "cpu")]
#![allow(missing_docs)]

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use crossccl::{Broadcast, Communicator, Cpu, ReduceOp, ReduceScatter};
use tracing_subscriber::fmt::format::FmtSpan;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn spans_carry_operation_bytes_algorithm_label_and_target() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::NEW)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let comm = Communicator::<Cpu>::builder(0..2).build().unwrap();
        let mut data = [0, 1].map(|r| comm.buffer_from(r, &[1.0f32; 100]).unwrap());
        let what = Broadcast::from_root(0).label("weights").target("layer 3");
        comm.broadcast_in_place(&mut data, what).unwrap().wait().unwrap();
        let what = ReduceScatter::new(ReduceOp::Sum).label("gradients");
        comm.reduce_scatter_in_place(&mut data, what).unwrap().wait().unwrap();
    });
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let spans: Vec<&str> = text.lines().filter(|l| l.contains("collective{") && l.contains("new")).collect();
    assert_eq!(spans.len(), 2, "{text}");
    for field in [
        r#"operation="broadcast""#,
        "bytes=400",
        r#"algorithm="one-stage""#,
        r#"label="weights""#,
        r#"target="layer 3""#,
    ] {
        assert!(spans[0].contains(field), "{field}: {}", spans[0]);
    }
    assert!(
        spans[1].contains(r#"operation="reduce_scatter""#) && spans[1].contains(r#"label="gradients""#),
        "{}",
        spans[1]
    );
    // The plan of each, in one line.
    assert_eq!(text.lines().filter(|l| l.contains("plan=") && l.contains("blocks=1")).count(), 2, "{text}");
}
