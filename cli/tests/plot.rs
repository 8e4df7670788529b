//! The picture of `crossccl perf --plot` against the JSON of the same run: every series and every point of
//! it is there, in the right place of axes that say so.

#![cfg(feature = "cpu")]

use std::{fs, process::Command};

use serde_json::Value;

/// As the series come. The same list on purpose: what has changed in the program fails here.
const COLOURS: [&str; 8] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#661100"];

/// Bytes, time and bus bandwidth of each point of each series.
type Series = Vec<Vec<[f64; 3]>>;

/// Runs once, and returns what was measured and the picture of it.
fn run(arguments: &str) -> (Series, String) {
    let folder = tempfile::tempdir().unwrap();
    let (json, plot) = (folder.path().join("out.json"), folder.path().join("out.svg"));
    fs::write(&plot, "what was there before").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_crossccl"))
        .arg("perf")
        .args(arguments.split_whitespace())
        .args(["--iters", "3", "--warmup", "1"])
        .args(["--json".as_ref(), json.as_os_str(), "--plot".as_ref(), plot.as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let mut found: Vec<(String, Vec<[f64; 3]>)> = Vec::new();
    for row in json["rows"].as_array().unwrap() {
        for place in ["out_of_place", "in_place"] {
            if row[place].is_null() {
                continue;
            }
            let key = format!("{} {} {} {} {place}", row["dtype"], row["op"], row["root"], row["algorithm"]);
            let [time, busbw] = ["time_us_p50", "busbw_gb_per_s"].map(|name| row[place][name].as_f64().unwrap());
            let point = [row["bytes"].as_f64().unwrap(), time, busbw];
            match found.iter_mut().find(|(k, _)| *k == key) {
                Some((_, points)) => points.push(point),
                None => found.push((key, vec![point])),
            }
        }
    }
    (found.into_iter().map(|(_, points)| points).collect(), fs::read_to_string(plot).unwrap())
}

/// What of a picture is looked at.
struct Picture<'a>(roxmltree::Document<'a>);

impl<'a> Picture<'a> {
    fn parse(svg: &'a str) -> Self {
        Picture(roxmltree::Document::parse(svg).unwrap())
    }

    fn with(&self, tag: &str, attribute: &str, value: &str) -> Vec<roxmltree::Node<'_, '_>> {
        let nodes = self.0.descendants().filter(|n| n.has_tag_name(tag) && n.attribute(attribute) == Some(value));
        nodes.collect()
    }

    /// The corners of the lines of a series: of the legend, then of each chart.
    fn lines(&self, series: usize) -> Vec<Vec<[f64; 2]>> {
        let corners = |points: &str| -> Vec<[f64; 2]> {
            let pairs = points.split_whitespace().map(|pair| pair.split_once(',').unwrap());
            pairs.map(|(x, y)| [x.parse().unwrap(), y.parse().unwrap()]).collect()
        };
        let lines = self.with("polyline", "stroke", COLOURS[series]);
        lines.iter().map(|line| corners(line.attribute("points").unwrap())).collect()
    }

    fn markers(&self, series: usize) -> usize {
        self.with("polygon", "fill", COLOURS[series]).len()
    }

    /// Every text and where it stands.
    fn texts(&self) -> Vec<(String, f64, f64)> {
        let number = |node: &roxmltree::Node<'_, '_>, name| node.attribute(name).unwrap().parse().unwrap();
        let texts = self.0.descendants().filter(|n| n.has_tag_name("text"));
        texts.map(|n| (n.text().unwrap().trim().into(), number(&n, "x"), number(&n, "y"))).collect()
    }

    fn has(&self, text: &str) -> bool {
        self.texts().iter().any(|(t, _, _)| t.contains(text))
    }
}

/// Where an axis has which value, by the two points that are farthest apart.
struct Scale {
    low: (f64, f64),
    high: (f64, f64),
}

impl Scale {
    fn new(seen: &[(f64, f64)]) -> Self {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.0.total_cmp(&b.0);
        let (low, high) = (*seen.iter().min_by(by_value).unwrap(), *seen.iter().max_by(by_value).unwrap());
        assert!(low.0 < high.0, "{seen:?}");
        Scale { low, high }
    }

    fn slope(&self) -> f64 {
        (self.high.1 - self.low.1) / (self.high.0 / self.low.0).ln()
    }

    /// On a logarithmic axis `value` is at `position`. The ends are known to a pixel, what is beyond them
    /// to more.
    fn holds(&self, (value, position): (f64, f64)) {
        let expected = self.low.1 + self.slope() * (value / self.low.0).ln();
        let tolerance = 2.0 + 2.0 * ((expected - self.low.1) / (self.high.1 - self.low.1)).abs();
        assert!((expected - position).abs() <= tolerance, "{value} is at {position}, not at {expected}");
    }
}

/// A value as an axis writes it, in bytes, µs or GB/s.
fn value(label: &str) -> Option<f64> {
    let (number, unit) = label.split_once(' ').unwrap_or((label, ""));
    let factor = match unit {
        "" | "B" | "µs" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1048576.0,
        "ns" => 1e-3,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// All of it: lines, corners, where they are, and where the labels of the axes are.
fn agrees(series: &Series, picture: &Picture<'_>) {
    let total: usize = series.iter().map(Vec::len).sum();
    assert!(total > 1);
    for (at, points) in series.iter().enumerate() {
        assert_eq!(picture.markers(at), 1 + 2 * points.len(), "series {at}");
        let corners: Vec<_> = picture.lines(at).iter().map(Vec::len).collect();
        assert_eq!(corners, [2, points.len(), points.len()], "series {at}");
    }
    for unused in series.len()..COLOURS.len() {
        assert_eq!((picture.markers(unused), picture.lines(unused).len()), (0, 0));
    }
    for chart in [1, 2] {
        let (mut sizes, mut values) = (Vec::new(), Vec::new());
        for (at, points) in series.iter().enumerate() {
            for (point, [x, y]) in points.iter().zip(&picture.lines(at)[chart]) {
                sizes.push((point[0], *x));
                values.push((point[chart], *y));
            }
        }
        let (across, up) = (Scale::new(&sizes), Scale::new(&values));
        sizes.iter().for_each(|seen| across.holds(*seen));
        values.iter().for_each(|seen| up.holds(*seen));
        assert!(across.slope() > 0.0, "larger is to the right");
        assert!(up.slope() < 0.0, "more is higher");

        // The labels of the axes of this half.
        let half = if chart == 1 { 0.0..800.0 } else { 800.0..1600.0 };
        let labels = picture.texts().into_iter().filter(|(_, x, _)| half.contains(x));
        let (mut below, mut beside) = (0, 0);
        for (label, x, y) in labels {
            let Some(value) = value(&label) else { continue };
            if label.ends_with('B') {
                across.holds((value, x));
                below += 1;
            } else {
                up.holds((value, y));
                beside += 1;
            }
        }
        assert!(below >= 2 && beside >= 2, "chart {chart}: {below} labels of sizes, {beside} of values");
    }
}

#[test]
fn both_places_of_a_broadcast() {
    let (series, svg) = run("broadcast --ranks 3 --min-bytes 1K --max-bytes 1M");
    assert_eq!(series.iter().map(Vec::len).collect::<Vec<_>>(), [6, 6]);
    let picture = Picture::parse(&svg);
    agrees(&series, &picture);
    assert!(picture.has("crossccl perf broadcast: backend cpu, 3 ranks, f32"), "{svg}");
    assert!(picture.has(&format!("crossccl {}", env!("CARGO_PKG_VERSION"))), "{svg}");
    for text in ["broadcast, one-stage, out of place", "broadcast, one-stage, in place", "1 KiB", "64 KiB", "1 MiB"] {
        assert!(picture.has(text), "{text}\n{svg}");
    }
    assert!(!svg.contains("not shown"), "{svg}");
}

#[test]
fn as_many_series_as_there_are_colours() {
    let arguments =
        "broadcast --ranks 4 --root all --algorithm two-stage --dtype bf16 --min-bytes 8 --max-bytes 2M --factor 64";
    let (series, svg) = run(arguments);
    assert_eq!(series.len(), 8);
    let picture = Picture::parse(&svg);
    agrees(&series, &picture);
    assert!(picture.has("broadcast from rank 3, two-stage-direct, in place"), "{svg}");
}

#[test]
fn more_series_than_colours_are_refused_before_they_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, collective, series) in [
        ("broadcast --dtype all", "broadcast", 20),
        ("reduce-scatter --op all --in-place --dtype all", "reduce-scatter", 50),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_crossccl"))
            .current_dir(folder.path())
            .args(format!("perf {arguments} --plot out.svg").split_whitespace())
            .output()
            .unwrap();
        let expected = format!(
            "crossccl: perf {collective}: --plot shows up to 8 series, and this run has {series}, one for each dtype, op, \
             root, algorithm and place; ask for fewer, for instance with --out-of-place\n"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn groups_ops_and_dtypes_are_told() {
    let (series, svg) =
        run("reduce-scatter --group-size 2 --op all --in-place --min-bytes 64 --max-bytes 4M --factor 64 --unalign 1");
    assert_eq!(series.len(), 5);
    let picture = Picture::parse(&svg);
    agrees(&series, &picture);
    for text in ["groups of 2 ranks", "data 1 element into each buffer", "reduce-scatter product, one-stage, in place"]
    {
        assert!(picture.has(text), "{text}\n{svg}");
    }
}

#[test]
fn one_size_has_an_axis_too() {
    let (series, svg) = run("broadcast --min-bytes 4000 --max-bytes 4000 --out-of-place");
    assert_eq!(series.iter().map(Vec::len).collect::<Vec<_>>(), [1]);
    let picture = Picture::parse(&svg);
    // A point makes no line.
    assert_eq!((picture.markers(0), picture.lines(0).len()), (3, 1));
    assert!(picture.has("2 KiB") && picture.has("4 KiB"), "{svg}");
}

/// With one rank the bus bandwidth of reduce-scatter is 0.
#[test]
fn one_rank_has_no_bus_bandwidth() {
    let (series, svg) = run("reduce-scatter --ranks 1 --min-bytes 64 --max-bytes 1K --out-of-place");
    assert!(series[0].len() == 3 && series[0].iter().all(|point| point[2] == 0.0));
    let picture = Picture::parse(&svg);
    assert_eq!((picture.markers(0), picture.lines(0).len()), (4, 2));
    assert!(picture.has("bus bandwidth (GB/s): all are 0"), "{svg}");
    assert!(picture.has("3 of 3 points are not shown: logarithmic axes have no 0"), "{svg}");
}

/// A tensor without elements.
#[test]
fn no_bytes_at_all() {
    let (_, svg) = run("reduce-scatter --shape 0x4 --out-of-place");
    assert_eq!(Picture::parse(&svg).markers(0), 1);
    assert!(svg.contains("time of a call, median: all are 0"), "{svg}");
}
