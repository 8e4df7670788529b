//! Training on a small real data set (Fisher's irises), data-parallel, the optimizer's state cut over the ranks.
//!
//! A thread a rank. Rank 0 broadcasts the weights to start with. In each step every rank computes the gradient of its own
//! flowers; a reduce-scatter sums the gradients and gives each rank those of its part of the weights, for which it alone
//! has the momentum; it moves that part and broadcasts it. The loss is one more element of the gradient.
//!
//! The curve of the losses is that of one rank but for rounding, and is drawn.
//!
//! ```sh
//! cargo run --release --example data_parallel_training                 # draws into the folder for temporary files
//! cargo run --release --example data_parallel_training -- cpu loss.svg
//! ```

#![cfg_attr(not(feature = "cpu"), allow(dead_code))]

mod support;

use std::{ops::Range, path::Path, thread};

use crossccl::{Backend, Communicator, RankComm, ReduceOp};
use plotters::prelude::{BLUE, ChartBuilder, IntoDrawingArea, IntoLogRange, LineSeries, RED, SVGBackend, WHITE};
use support::{Outcome, check, example};

const RANKS: usize = 4;
const STEPS: usize = 300;
const RATE: f32 = 0.1;
const MOMENTUM: f32 = 0.9;

const FEATURES: usize = 4;
const HIDDEN: usize = 16;
const SPECIES: usize = 3;
/// Weights and biases of both layers.
const WEIGHTS: usize = (FEATURES + 1) * HIDDEN + (HIDDEN + 1) * SPECIES;

struct Flower {
    features: [f32; FEATURES],
    species: usize,
}

/// What a training comes to.
struct Outcomes {
    losses: Vec<f32>,
    weights: Vec<f32>,
}

example!(run);

fn run<B: Backend>(arguments: &[String]) -> Outcome {
    let flowers = flowers()?;
    let alone = train::<B>(1, &flowers)?;
    let together = train::<B>(RANKS, &flowers)?;

    let far = (alone.losses.iter().zip(&together.losses)).map(|(a, b)| (a - b).abs() / a).fold(0.0, f32::max);
    check(far < 1e-3, || format!("the losses of {RANKS} ranks are up to {far} of one rank's from them"))?;
    let right = flowers.iter().filter(|flower| guess(&together.weights, flower) == flower.species).count();
    check(right * 100 >= flowers.len() * 95, || format!("{right} of {} flowers", flowers.len()))?;
    let ends = [0, STEPS - 1].map(|step| together.losses[step]);
    println!(
        "{RANKS} ranks, {STEPS} steps: loss {:.3} to {:.3}, {right} of {} flowers right; at most {far:.1e} from one rank's losses",
        ends[0],
        ends[1],
        flowers.len()
    );

    let temporary = std::env::temp_dir().join("crossccl-loss.svg");
    let path = arguments.first().map_or(temporary.as_path(), Path::new);
    draw(path, &alone.losses, &together.losses)?;
    println!("drawn: {}", path.display());
    Ok(())
}

fn train<B: Backend>(ranks: usize, flowers: &[Flower]) -> Result<Outcomes, Box<dyn std::error::Error>> {
    let comm = Communicator::<B>::builder(0..ranks).build()?;
    // The loss stands behind the gradient.
    let part = |rank| comm.part(rank, WEIGHTS + 1, ReduceOp::Sum);
    let parts: Vec<Range<usize>> = (0..ranks)
        .map(|rank| part(rank).map(|p| p.offset as usize..(p.offset + p.count()) as usize))
        .collect::<Result<_, _>>()?;
    let results: Vec<crossccl::Result<Outcomes>> = thread::scope(|scope| {
        let threads: Vec<_> =
            comm.into_ranks().into_iter().map(|rank| scope.spawn(|| one_rank(rank, flowers, &parts))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank's thread does not panic")).collect()
    });
    let mut results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let last = results.pop().ok_or("no ranks")?;
    check(results.iter().all(|other| other.weights == last.weights), || "the ranks' weights are not the same".into())?;
    Ok(last)
}

fn one_rank<B: Backend>(comm: RankComm<B>, flowers: &[Flower], parts: &[Range<usize>]) -> crossccl::Result<Outcomes> {
    let me = comm.rank().index();
    let own: Vec<&Flower> = flowers.iter().skip(me).step_by(comm.ranks()).collect();
    let mut weights = comm.buffer::<f32>(WEIGHTS + 1)?;
    if me == 0 {
        weights.write(&start())?;
    }
    comm.broadcast_in_place(&mut weights, 0)?.wait()?;

    let mut gradient = comm.buffer::<f32>(WEIGHTS + 1)?;
    let mut share = comm.buffer::<f32>(parts[me].len())?;
    // This rank's part of the optimizer's state.
    let mut velocity = vec![0.0; parts[me].len()];
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let mut now = weights.to_vec()?;
        gradient.write(&gradient_of(&now, &own))?;
        comm.reduce_scatter(&gradient, &mut share, ReduceOp::Sum)?.wait()?;
        let mean: Vec<f32> = share.to_vec()?.into_iter().map(|sum| sum / flowers.len() as f32).collect();
        for ((velocity, weight), slope) in velocity.iter_mut().zip(&mut now[parts[me].clone()]).zip(&mean) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= RATE * *velocity;
        }
        weights.write_at(parts[me].start, &now[parts[me].clone()])?;
        for (owner, part) in parts.iter().enumerate() {
            comm.broadcast_in_place(weights.slice_mut(part.clone())?, owner)?.wait()?;
        }
        // Of the last rank alone, whose part ends with it.
        losses.extend(mean.last());
    }
    let mut weights = weights.to_vec()?;
    weights.truncate(WEIGHTS);
    Ok(Outcomes { losses, weights })
}

/// The hidden layer, and how likely each species is.
fn forward(weights: &[f32], flower: &Flower) -> ([f32; HIDDEN], [f32; SPECIES]) {
    let (first, second) = weights.split_at((FEATURES + 1) * HIDDEN);
    let dot = |row: &[f32], x: &[f32]| row[x.len()] + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
    let hidden: [f32; HIDDEN] =
        std::array::from_fn(|unit| dot(&first[unit * (FEATURES + 1)..][..FEATURES + 1], &flower.features).tanh());
    let scores: [f32; SPECIES] =
        std::array::from_fn(|species| dot(&second[species * (HIDDEN + 1)..][..HIDDEN + 1], &hidden));
    let most = scores.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let exps = scores.map(|score| (score - most).exp());
    let sum: f32 = exps.iter().sum();
    (hidden, exps.map(|e| e / sum))
}

fn guess(weights: &[f32], flower: &Flower) -> usize {
    let (_, likely) = forward(weights, flower);
    (0..SPECIES).max_by(|a, b| likely[*a].total_cmp(&likely[*b])).unwrap_or(0)
}

/// The gradient of the cross entropy, summed over the flowers, and the sum itself behind it.
fn gradient_of(weights: &[f32], flowers: &[&Flower]) -> Vec<f32> {
    let mut gradient = vec![0.0; WEIGHTS + 1];
    let second = &weights[(FEATURES + 1) * HIDDEN..];
    for flower in flowers {
        let (hidden, likely) = forward(weights, flower);
        gradient[WEIGHTS] -= likely[flower.species].max(f32::MIN_POSITIVE).ln();
        let mut behind = [0.0; HIDDEN];
        for (species, likely) in likely.into_iter().enumerate() {
            let error = likely - f32::from(species == flower.species);
            let row = species * (HIDDEN + 1);
            let slopes = &mut gradient[(FEATURES + 1) * HIDDEN + row..][..HIDDEN + 1];
            for unit in 0..HIDDEN {
                slopes[unit] += error * hidden[unit];
                behind[unit] += error * second[row + unit];
            }
            slopes[HIDDEN] += error;
        }
        for unit in 0..HIDDEN {
            let error = behind[unit] * (1.0 - hidden[unit] * hidden[unit]);
            let slopes = &mut gradient[unit * (FEATURES + 1)..][..FEATURES + 1];
            slopes.iter_mut().zip(flower.features).for_each(|(slope, x)| *slope += error * x);
            slopes[FEATURES] += error;
        }
    }
    gradient
}

/// Small numbers that are not the same, and the place of the loss.
fn start() -> Vec<f32> {
    (0..=WEIGHTS).map(|i| ((i * 7919) % 101) as f32 / 101.0 - 0.5).collect()
}

/// Each feature with mean 0 and deviation 1.
fn flowers() -> Result<Vec<Flower>, Box<dyn std::error::Error>> {
    let mut flowers = Vec::new();
    for line in include_str!("data/iris.csv").lines().filter(|line| !line.starts_with('#')) {
        let values = line.split(',').map(str::parse).collect::<Result<Vec<f32>, _>>()?;
        let [features @ .., species] = &values[..] else { return Err("an empty line".into()) };
        flowers.push(Flower { features: features.try_into()?, species: *species as usize });
    }
    for feature in 0..FEATURES {
        let count = flowers.len() as f32;
        let mean = flowers.iter().map(|f| f.features[feature]).sum::<f32>() / count;
        let variance = flowers.iter().map(|f| (f.features[feature] - mean).powi(2)).sum::<f32>() / count;
        flowers.iter_mut().for_each(|f| f.features[feature] = (f.features[feature] - mean) / variance.sqrt());
    }
    Ok(flowers)
}

fn draw(path: &Path, alone: &[f32], together: &[f32]) -> Outcome {
    let area = SVGBackend::new(path, (640, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let least = together.iter().copied().fold(f32::INFINITY, f32::min);
    let most = together.iter().copied().fold(0.0, f32::max);
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .set_all_label_area_size(45)
        .build_cartesian_2d(0..STEPS, (least * 0.9..most * 1.1).log_scale())?;
    chart.configure_mesh().disable_mesh().x_desc("step").y_desc("mean loss").draw()?;
    let series = |losses: &[f32]| losses.iter().copied().enumerate().collect::<Vec<_>>();
    chart.draw_series(LineSeries::new(series(alone), &BLUE))?;
    chart.draw_series(LineSeries::new(series(together), &RED))?;
    area.present()?;
    Ok(())
}
