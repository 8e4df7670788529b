//! Running a model: many executions, and their number.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// How much is explored.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// loom: preemptions of one execution; `None` is all.
    pub preemptions: Option<usize>,
    /// shuttle: schedules, half at random and half by priority.
    pub schedules: usize,
}

impl Budget {
    /// For loom.
    pub fn preemptions(n: usize) -> Self {
        Budget { preemptions: Some(n), schedules: 0 }
    }

    /// For shuttle.
    pub fn schedules(n: usize) -> Self {
        Budget { preemptions: None, schedules: n }
    }
}

/// Runs the model; a failed assertion, data race or endless wait panics.
pub fn explore(name: &str, budget: Budget, model: impl Fn() + Send + Sync + 'static) {
    let begin = Instant::now();
    let executions = Arc::new(AtomicU64::new(0));
    let count = executions.clone();
    run(budget, move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{name}: {executions} executions, {:.2} s", begin.elapsed().as_secs_f64());
}

/// Runs a model that must fail with one of these messages.
pub fn must_fail(name: &str, budget: Budget, messages: &[&str], model: impl Fn() + Send + Sync + 'static) {
    let begin = Instant::now();
    let executions = Arc::new(AtomicU64::new(0));
    let count = executions.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run(budget, move || {
            count.fetch_add(1, Ordering::Relaxed);
            model();
        });
    }));
    let executions = executions.load(Ordering::Relaxed);
    let Err(payload) = outcome else { panic!("{name}: not found in {executions} executions") };
    let text = (payload.downcast_ref::<String>().map(String::as_str))
        .or(payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    assert!(messages.iter().any(|m| text.contains(m)), "{name}: failed otherwise than expected: {text}");
    let line = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("").trim();
    println!("{name}: found in execution {executions}, {:.2} s: {line}", begin.elapsed().as_secs_f64());
}

#[cfg(loom)]
fn run(budget: Budget, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = budget.preemptions;
    builder.max_branches = 5_000;
    builder.check(model);
}

#[cfg(not(any(loom, model_threads)))]
fn run(budget: Budget, model: impl Fn() + Send + Sync + 'static) {
    use shuttle::{
        Config, FailurePersistence, MaxSteps, Runner,
        scheduler::{PctScheduler, RandomScheduler},
    };
    let mut config = Config::new();
    config.stack_size = 1 << 16;
    config.max_steps = MaxSteps::FailAfter(50_000);
    config.failure_persistence = FailurePersistence::None;
    // From fixed seeds: the same schedules each time.
    let model = Arc::new(model);
    let half = budget.schedules.div_ceil(2);
    let again = model.clone();
    Runner::new(RandomScheduler::new_from_seed(0x0c05_5cc1, half), config.clone()).run(move || again());
    Runner::new(PctScheduler::new_from_seed(0x0c05_5cc1, 3, half), config).run(move || model());
}

#[cfg(model_threads)]
fn run(budget: Budget, model: impl Fn() + Send + Sync + 'static) {
    for _ in 0..budget.schedules {
        model();
    }
}
