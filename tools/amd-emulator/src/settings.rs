//! Settings, from the environment.

use std::str::FromStr;

use crate::{architecture, machine::Settings};

pub(crate) fn read() -> Settings {
    #[cfg(target_arch = "x86_64")]
    if !(is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c"))
    {
        end("this processor has no AVX2, FMA, BMI2 and F16C, which the emulator is compiled for");
    }
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Another one each time, told when something fails.
    let seed = clock.map_or(1, |t| t.as_nanos() as u64 & 0xffff_ffff);
    let target = text("CROSSCCL_EMULATOR_TARGET").unwrap_or_else(|| architecture::DEFAULT.to_owned());
    let target = architecture::named(&target).unwrap_or_else(|why| end(&format!("CROSSCCL_EMULATOR_TARGET: {why}")));
    Settings {
        target,
        devices: number("CROSSCCL_EMULATOR_DEVICES", 8usize).min(64),
        seed: number("CROSSCCL_EMULATOR_SEED", seed),
        units: number("CROSSCCL_EMULATOR_UNITS", target.units),
        dies: number("CROSSCCL_EMULATOR_DIES", 8),
        caches: number("CROSSCCL_EMULATOR_CACHES", 1u8) != 0,
        spread: number("CROSSCCL_EMULATOR_SPREAD", 3.0),
        steps: number("CROSSCCL_EMULATOR_STEPS", 4_000_000_000),
        bytes: number::<u64>("CROSSCCL_EMULATOR_GIB", 16) << 30,
        object: text("CROSSCCL_EMULATOR_OBJECT"),
        report: number("CROSSCCL_EMULATOR_REPORT", 0u8) != 0,
        abort: std::env::var("CROSSCCL_EMULATOR_FAULTS").map_or(true, |v| v != "error"),
    }
}

fn text(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|v| !v.is_empty())
}

fn number<T: FromStr>(variable: &str, otherwise: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| end(&format!("{variable}={text} is no number that fits"))),
        Err(_) => otherwise,
    }
}

/// Ends the process, as the real runtime does after a fault of a device: no test goes on as if nothing had been.
pub(crate) fn end(text: &str) -> ! {
    eprintln!("crossccl emulator: {text}");
    std::process::abort()
}
