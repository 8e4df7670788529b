//! How often a call is timed: a number of times, or until its median is stable.
//!
//! A median is stable when its 95 % confidence interval lies within some percent of it on both sides. The interval is
//! that of order statistics, which asks nothing of the distribution: of n times in order, from the floor((n - 1.96 √n) / 2)-th
//! to the ceil(1 + (n + 1.96 √n) / 2)-th. It, and measuring until it is narrow enough, are from T. Hoefler and R. Belli,
//! "Scientific Benchmarking of Parallel Computing Systems", SC15 (doi 10.1145/2807591.2807644).
//!
//! It tells when to stop, and promises nothing of another run: calls that follow each other are not independent, and who
//! looks again and again finds a narrow interval sooner than one in twenty times by chance. So looks are few: each
//! comes after half as many calls more.

use std::time::Duration;

use super::report::percentile;
use crate::error::CliError;

/// Calls before the first look, and what a run has where its calls are longer than its time.
pub(crate) const LEAST: usize = 20;
/// Calls after which a median counts as it is. Among so many, the interval is from the 49th percentile to the 51st.
const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Repeat {
    /// So many.
    Times(u32),
    /// Until the median is stable `within` so many percent, or for [`LEAST`] calls and `most` seconds.
    UntilStable { within: f64, most: Duration },
}

impl Repeat {
    /// What `sample` takes, again and again; `elapsed` tells the time since the beginning.
    pub(crate) fn samples(
        self,
        elapsed: impl Fn() -> Duration,
        mut sample: impl FnMut() -> Result<Duration, CliError>,
    ) -> Result<Vec<Duration>, CliError> {
        let (within, most) = match self {
            Repeat::Times(times) => return (0..times).map(|_| sample()).collect(),
            Repeat::UntilStable { within, most } => (within, most),
        };
        let mut times = Vec::new();
        let mut next = LEAST;
        loop {
            while times.len() < next {
                times.push(sample()?);
                if times.len() >= LEAST && elapsed() >= most {
                    return Ok(times);
                }
            }
            let mut sorted = times.clone();
            sorted.sort_unstable();
            if times.len() >= MOST || is_within(&sorted, within) {
                return Ok(times);
            }
            next = (next + next / 2).min(MOST);
        }
    }

    /// Whether the median of these is stable, where that was asked for.
    pub(crate) fn is_stable(self, sorted: &[Duration]) -> Option<bool> {
        match self {
            Repeat::Times(_) => None,
            Repeat::UntilStable { within, .. } => Some(is_within(sorted, within)),
        }
    }
}

/// The 95 % confidence interval of the median. `None` of too few times to have one.
pub(crate) fn interval(sorted: &[Duration]) -> Option<(Duration, Duration)> {
    let below = rank_below(sorted.len())?;
    Some((*sorted.get(below - 1)?, *sorted.get(sorted.len() - below)?))
}

/// Where the interval begins, counted from 1; it ends as far from the other end.
fn rank_below(n: usize) -> Option<usize> {
    let rank = ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.0).floor();
    (rank >= 1.0).then_some(rank as usize)
}

fn is_within(sorted: &[Duration], percent: f64) -> bool {
    uncertainty(sorted).is_some_and(|found| found <= percent)
}

/// How far from the median its interval reaches, in percent of it.
pub(crate) fn uncertainty(sorted: &[Duration]) -> Option<f64> {
    let (low, high) = interval(sorted)?;
    let median = percentile(sorted, 50);
    let farther = (median - low).max(high - median);
    // Where clocks are coarse all may be 0.
    Some(if farther.is_zero() { 0.0 } else { farther.as_secs_f64() / median.as_secs_f64() * 100.0 })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn us(times: &[u64]) -> Vec<Duration> {
        times.iter().map(|t| Duration::from_micros(*t)).collect()
    }

    const RULE: Repeat = Repeat::UntilStable { within: 5.0, most: Duration::from_secs(1) };

    /// What `rule` takes of a series, on a clock that counts what the calls take and nothing else; and whether the
    /// median is stable then.
    fn taken(rule: Repeat, time: impl Fn(usize) -> u64) -> (usize, Option<bool>) {
        let (clock, calls) = (Cell::new(Duration::ZERO), Cell::new(0));
        let sample = || {
            let time = Duration::from_nanos(time(calls.get()));
            calls.set(calls.get() + 1);
            clock.set(clock.get() + time);
            Ok(time)
        };
        let mut times = rule.samples(|| clock.get(), sample).unwrap();
        assert_eq!(times.len(), calls.get());
        times.sort_unstable();
        (times.len(), rule.is_stable(&times))
    }

    /// Numbers from 0 to 1 that look like chance.
    fn chance(i: usize) -> f64 {
        ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1u64 << 24) as f64
    }

    /// By the binomial distribution, of which the formula is an approximation: the median of the distribution is below
    /// the k-th of n times where fewer than k of n fair coins fall.
    #[test]
    fn the_interval_holds_the_median_in_95_of_100_cases() {
        for n in 8..=1000usize {
            let k = rank_below(n).unwrap();
            // Terms of (1/2)^n n!/i!(n-i)!, the smallest of which an f64 still has.
            let mut term = 0.5f64.powi(n as i32);
            let mut below = 0.0;
            for i in 0..k {
                below += term;
                term *= (n - i) as f64 / (i + 1) as f64;
            }
            let holds = 1.0 - 2.0 * below;
            assert!(holds >= 0.95, "{n} times from the {k}-th: {holds}");
            assert!(n < 100 || holds < 0.976, "{n} times from the {k}-th: wider than it must be, {holds}");
        }
        assert_eq!((0..7).map(rank_below).collect::<Vec<_>>(), [None; 7]);
        assert_eq!(interval(&us(&(1..=20).collect::<Vec<_>>())), Some((us(&[5])[0], us(&[16])[0])));
        assert_eq!(interval(&[]), None);
    }

    #[test]
    fn what_is_stable_ends_at_the_first_look() {
        assert_eq!(taken(RULE, |i| 10_000 + (chance(i) * 400.0) as u64), (20, Some(true)));
        // Whatever a few calls take.
        assert_eq!(taken(RULE, |i| if i % 7 == 0 { 1_000_000 } else { 10_000 }), (20, Some(true)));
        assert_eq!(taken(RULE, |_| 0), (20, Some(true)));
    }

    /// From half as long to half as long again: the interval needs hundreds of calls to be narrow.
    #[test]
    fn what_is_noisy_is_repeated_until_it_is_stable() {
        let (calls, stable) = taken(RULE, |i| 5_000 + (chance(i) * 10_000.0) as u64);
        assert_eq!(stable, Some(true));
        assert!((100..1000).contains(&calls), "{calls}");
        let closer = Repeat::UntilStable { within: 2.0, most: Duration::from_secs(1) };
        let (more, stable) = taken(closer, |i| 5_000 + (chance(i) * 10_000.0) as u64);
        assert_eq!(stable, Some(true));
        assert!(more > 2 * calls, "{calls}, {more}");
    }

    /// Half of the calls take twice as long as the others: the median is the one or the other, whatever the number.
    #[test]
    fn what_never_is_stable_ends_by_time_or_number_and_says_so() {
        let two_kinds = |us: u64| move |i: usize| us * 1000 * (1 + i as u64 % 2);
        // 1.5 ms a call on average, for a second.
        assert_eq!(taken(RULE, two_kinds(1000)), (667, Some(false)));
        assert_eq!(taken(RULE, two_kinds(10)), (MOST, Some(false)));
        // Not before 20.
        assert_eq!(taken(RULE, two_kinds(1_000_000)), (LEAST, Some(false)));
        let twenty = us(&[[1; 10], [2; 10]].concat());
        assert_eq!(uncertainty(&twenty), Some(100.0));
    }

    #[test]
    fn a_number_is_a_number() {
        assert_eq!(taken(Repeat::Times(3), |i| 1000 << i), (3, None));
        assert_eq!(taken(Repeat::Times(30_000), |_| 1), (30_000, None));
    }

    #[test]
    fn an_error_ends_it() {
        for rule in [RULE, Repeat::Times(5)] {
            let calls = Cell::new(0);
            let outcome = rule.samples(
                || Duration::ZERO,
                || {
                    calls.set(calls.get() + 1);
                    if calls.get() < 3 { Ok(Duration::ZERO) } else { Err(CliError::Failure("a fault".into())) }
                },
            );
            assert_eq!((outcome.unwrap_err().to_string(), calls.get()), ("a fault".to_owned(), 3));
        }
    }
}
