//! The picture of `--plot`: time and bus bandwidth over size, all axes logarithmic.
//!
//! A series is one line in each chart: one collective, dtype, operation, root, algorithm and place. Each
//! has a colour and a marker of its own, so that who cannot tell the ones apart has the others.

use std::{f64::consts::TAU, io, ops::Range, path::Path};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{
    drive::Drive,
    job::Place,
    report::{Document, Row},
};
use crate::{error::CliError, whole_file::WholeFile};

const WIDTH: u32 = 1600;
/// Of the charts; the head is as high as it must be.
const CHARTS: u32 = 640;
const MARGIN: i32 = 30;
/// Letters of a line of the head's text.
const LINE: usize = 135;
const LINE_HEIGHT: i32 = 32;

const INK: RGBColor = RGBColor(34, 34, 34);
const PALE: RGBColor = RGBColor(220, 220, 220);

/// Those of Okabe and Ito, with a dark brown for the yellow, which fades on white. With protanopia,
/// deuteranopia and tritanopia simulated (Machado et al. 2009, full severity) each two of them stay at
/// least 16 apart in CIE76; markers tell apart whom that does not help.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x66, 0x11, 0x00),
];

/// What makes a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    collective: &'static str,
    dtype: &'static str,
    op: Option<&'static str>,
    root: Option<usize>,
    algorithm: &'static str,
    place: Place,
}

impl Key {
    fn new(collective: &'static str, row: &Row, place: Place) -> Self {
        Key { collective, dtype: row.dtype, op: row.op, root: row.root, algorithm: row.algorithm, place }
    }

    /// What tells it from the others, and what is no matter of course.
    fn label(&self, dtypes: bool, roots: bool) -> String {
        let mut label = self.collective.to_owned();
        for word in [self.op, dtypes.then_some(self.dtype)].into_iter().flatten() {
            label += " ";
            label += word;
        }
        match self.root {
            Some(root) if roots || root != 0 => label += &format!(" from rank {root}"),
            _ => {}
        }
        let place = if self.place == Place::Out { "out of place" } else { "in place" };
        label + ", " + self.algorithm + ", " + place
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bytes: f64,
    time_us: f64,
    busbw_gb_per_s: f64,
}

struct Series {
    label: String,
    points: Vec<Point>,
}

/// The series of what was measured, in the order in which they began.
fn series(documents: &[Document]) -> Vec<Series> {
    let mut found: Vec<(Key, Vec<Point>)> = Vec::new();
    for (document, row) in documents.iter().flat_map(|d| d.rows.iter().map(move |row| (d, row))) {
        for (place, measured) in [(Place::Out, row.out_of_place), (Place::In, row.in_place)] {
            let Some(measured) = measured else { continue };
            let key = Key::new(document.collective, row, place);
            let point = Point {
                bytes: row.bytes as f64,
                time_us: measured.time_us_p50,
                busbw_gb_per_s: measured.busbw_gb_per_s,
            };
            match found.iter_mut().find(|(k, _)| *k == key) {
                Some((_, points)) => points.push(point),
                None => found.push((key, vec![point])),
            }
        }
    }
    let differ = |a: &dyn Fn(&Key) -> String| found.iter().any(|(k, _)| a(k) != a(&found[0].0));
    let dtypes = differ(&|k| k.dtype.into());
    let roots = differ(&|k| k.root.map_or_else(String::new, |r| r.to_string()));
    let labels = found.iter().map(|(key, _)| key.label(dtypes, roots)).collect::<Vec<_>>();
    labels.into_iter().zip(found).map(|(label, (_, points))| Series { label, points }).collect()
}

/// The file of `--plot`.
pub(crate) struct Plot(WholeFile);

impl Plot {
    pub(crate) fn create(path: &Path) -> Result<Self, CliError> {
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("svg")) {
            return Err(CliError::Usage(format!(
                "perf: --plot {}: the picture is an SVG; give a name that ends in .svg",
                path.display()
            )));
        }
        WholeFile::create("--plot", path).map(Plot)
    }

    /// Refuses more series than can be told apart, before they are measured.
    pub(crate) fn check(collective: &'static str, rows: &[Row], places: [bool; 2]) -> Result<(), CliError> {
        let mut keys: Vec<Key> = Vec::new();
        for row in rows {
            for (place, _) in [Place::Out, Place::In].into_iter().zip(places).filter(|(_, wanted)| *wanted) {
                let key = Key::new(collective, row, place);
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        if keys.len() <= COLOURS.len() {
            return Ok(());
        }
        Err(CliError::Usage(format!(
            "perf {collective}: --plot shows up to {} series, and this run has {}, one for each dtype, op, root, \
             algorithm and place; ask for fewer, for instance with --out-of-place",
            COLOURS.len(),
            keys.len()
        )))
    }

    /// Of runs with one configuration but for the collective.
    pub(crate) fn write(mut self, documents: &[Document]) -> Result<(), CliError> {
        let svg = draw(documents).map_err(|e| CliError::Failure(format!("perf: cannot draw the --plot: {e}")))?;
        self.0.write(svg.as_bytes())?;
        self.0.finish()
    }
}

type Failure = DrawingAreaErrorKind<io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(documents: &[Document]) -> Result<String, Failure> {
    let series = series(documents);
    let facts = wrapped(&facts(documents));
    let legend = 70 + LINE_HEIGHT * facts.len() as i32;
    let rows = series.len().div_ceil(2);
    let head = legend + LINE_HEIGHT * rows as i32 + 10;
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, head as u32 + CHARTS)).into_drawing_area();
    area.fill(&WHITE)?;

    area.draw_text(&title(documents), &text(38), (MARGIN, 20))?;
    for (line, fact) in (0..).zip(&facts) {
        area.draw_text(fact, &text(25), (MARGIN, 66 + LINE_HEIGHT * line))?;
    }
    for (at, one) in series.iter().enumerate() {
        // Column by column: the places of one collective stand below each other.
        let (column, row) = ((at / rows) as i32, (at % rows) as i32);
        let (x, y) = (MARGIN + column * WIDTH as i32 / 2, legend + LINE_HEIGHT * row + LINE_HEIGHT / 2);
        area.draw(&PathElement::new([(x, y), (x + 50, y)], COLOURS[at].stroke_width(3)))?;
        area.draw(&marker((x + 25, y), at))?;
        area.draw_text(&one.label, &text(25).pos(Pos::new(HPos::Left, VPos::Center)), (x + 64, y))?;
    }

    let (_, charts) = area.split_vertically(head);
    let (left, right) = charts.split_horizontally(WIDTH / 2);
    let shown = |value: fn(&Point) -> f64| -> Vec<Vec<(f64, f64)>> {
        let shown = |p: &Point| Some((p.bytes, value(p))).filter(|(x, y)| *x > 0.0 && *y > 0.0);
        series.iter().map(|s| s.points.iter().filter_map(shown).collect()).collect()
    };
    let points = series.iter().map(|s| s.points.len()).sum();
    let size = match documents {
        [only] if only.collective == "broadcast" => "size of the message",
        [_] => "size of each rank's whole input",
        _ => "size: the message, each rank's whole input",
    };
    chart((&area, &left), size, "time of a call, median", time_label, &shown(|p| p.time_us), points)?;
    let gb_per_s = |value: f64| value.to_string();
    chart((&area, &right), size, "bus bandwidth (GB/s)", gb_per_s, &shown(|p| p.busbw_gb_per_s), points)?;
    area.present()?;
    drop((left, right, charts, area));
    Ok(svg)
}

/// One line for each of `series`, in `area` of the `canvas`; `points` is how many there are, those that are not shown included.
fn chart(
    (canvas, area): (&Area<'_>, &Area<'_>),
    size: &str,
    what: &str,
    label: fn(f64) -> String,
    series: &[Vec<(f64, f64)>],
    points: usize,
) -> Result<(), Failure> {
    let shown: usize = series.iter().map(Vec::len).sum();
    let caption = match points - shown {
        0 => String::new(),
        n => format!("{n} of {points} points are not shown: logarithmic axes have no 0"),
    };
    let all = || series.iter().flatten();
    let (Some(x), Some(y)) = (axis(all().map(|p| p.0), 4.0), axis(all().map(|p| p.1), 10.0)) else {
        let (width, height) = area.dim_in_pixel();
        let middle = (width as i32 / 2, height as i32 / 2);
        let style = text(25).pos(Pos::new(HPos::Center, VPos::Center));
        area.draw_text(&format!("{what}: all are 0"), &style, middle)?;
        return area.draw_text(&caption, &style, (middle.0, middle.1 + LINE_HEIGHT));
    };
    let smallest = all().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let (sizes, values) = (size_ticks(&x, smallest), decimal_ticks(&y));
    let mut context = ChartBuilder::on(area)
        .margin_top(35)
        .margin_right(40)
        .margin_left(MARGIN)
        .margin_bottom(10)
        .set_label_area_size(LabelAreaPosition::Left, 110)
        .set_label_area_size(LabelAreaPosition::Bottom, 80)
        .build_cartesian_2d(x.log_scale().with_key_points(sizes), y.log_scale().with_key_points(values))?;
    context
        .configure_mesh()
        .x_desc(size)
        .y_desc(what)
        .x_label_formatter(&|bytes| size_label(*bytes))
        .y_label_formatter(&|value| label(*value))
        .label_style(text(21))
        .axis_desc_style(text(25))
        .axis_style(INK)
        .bold_line_style(PALE)
        .draw()?;
    area.draw_text(&caption, &text(22), (MARGIN + 110, 4))?;
    for (at, points) in series.iter().enumerate() {
        if points.len() > 1 {
            context.draw_series(LineSeries::new(points.iter().copied(), COLOURS[at].stroke_width(3)))?;
        }
        for point in points {
            canvas.draw(&marker(context.backend_coord(point), at))?;
        }
    }
    Ok(())
}

fn text(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// A point of a series: a disc, a square, and so on, one form for each colour.
fn marker((x, y): (i32, i32), series: usize) -> Polygon<(i32, i32)> {
    // Corners on one or two radii, and the turn of the first one from the top. What comes first is larger, so
    // that it can be seen below what has the same speed, as in place and out of place often have.
    let (corners, radii, turn) = match series {
        0 => (16, [10.0, 10.0], 0.0),
        1 => (4, [9.0, 9.0], 0.125),
        2 => (3, [14.0, 14.0], 0.0),
        3 => (4, [9.0, 9.0], 0.0),
        4 => (3, [11.0, 11.0], 0.5),
        5 => (10, [12.0, 5.0], 0.0),
        6 => (8, [12.0, 4.0], 0.0),
        _ => (8, [12.0, 4.0], 0.125),
    };
    let corner = |k: i32| {
        let angle = TAU * (f64::from(k) / f64::from(corners) + turn);
        let radius = radii[k as usize % 2];
        (x + (angle.sin() * radius).round() as i32, y - (angle.cos() * radius).round() as i32)
    };
    Polygon::new((0..corners).map(corner).collect::<Vec<_>>(), COLOURS[series].filled())
}

/// A range with some room around all `values`, of at least the factor `least` from end to end: of one value
/// alone, too. `None` of none.
fn axis(values: impl Iterator<Item = f64>, least: f64) -> Option<Range<f64>> {
    let (low, high) = values.map(f64::ln).fold(None, |ends: Option<(f64, f64)>, v| match ends {
        Some((low, high)) => Some((low.min(v), high.max(v))),
        None => Some((v, v)),
    })?;
    let missing = (least.ln() - (high - low)).max(0.0);
    let room = missing / 2.0 + (high - low).max(least.ln()) * 0.05;
    Some((low - room).exp()..(high + room).exp())
}

/// Powers of two, at most nine, the first one at the `smallest` size where that is one.
fn size_ticks(range: &Range<f64>, smallest: f64) -> Vec<f64> {
    let (first, last) = (range.start.log2().ceil() as i32, range.end.log2().floor() as i32);
    let step = ((last - first + 7) / 8).max(1);
    let smallest = smallest.log2().floor() as i32;
    let aligned = (first..=last).filter(|exponent| (exponent - smallest).rem_euclid(step) == 0);
    aligned.map(|exponent| f64::from(exponent).exp2()).collect()
}

/// Powers of ten, at most nine; where these are few, two and five times them, too.
fn decimal_ticks(range: &Range<f64>) -> Vec<f64> {
    let decades = (range.end / range.start).log10();
    let (first, last) = (range.start.log10().floor() as i32, range.end.log10().ceil() as i32);
    let step = ((last - first) / 9 + 1).max(1);
    let digits: &[f64] = if decades < 4.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = (first..=last).filter(|exponent| exponent.rem_euclid(step) == 0);
    // Divided by what is exact, a tick is the nearest number to what its label says.
    let tick = |digit: f64, exponent: i32| match exponent {
        0.. => digit * 10f64.powi(exponent),
        _ => digit / 10f64.powi(-exponent),
    };
    let ticks = powers.flat_map(|exponent| digits.iter().map(move |digit| tick(*digit, exponent)));
    ticks.filter(|tick| range.contains(tick)).collect()
}

/// Of a power of two.
fn size_label(bytes: f64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit as f64) {
        Some((unit, name)) => format!("{} {name}", bytes / unit as f64),
        None => format!("{bytes} B"),
    }
}

fn time_label(us: f64) -> String {
    match us {
        _ if us < 1.0 => format!("{} ns", (us * 1e3).round()),
        _ if us < 1e3 => format!("{us} µs"),
        _ if us < 1e6 => format!("{} ms", us / 1e3),
        _ => format!("{} s", us / 1e6),
    }
}

fn title(documents: &[Document]) -> String {
    let collectives: Vec<_> = documents.iter().map(|d| d.collective).collect();
    let mut title = format!("crossccl perf {}", collectives.join(" and "));
    if let Some(d) = documents.first() {
        title += &format!(": backend {}, {}", d.backend, counted(d.ranks, "rank"));
    }
    let mut dtypes: Vec<_> = documents.iter().flat_map(|d| &d.rows).map(|r| r.dtype).collect();
    dtypes.dedup();
    if let [dtype] = dtypes[..] {
        title += &format!(", {dtype}");
    }
    title
}

/// What else the numbers depend on, and what they are.
fn facts(documents: &[Document]) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(d) = documents.first() {
        facts.push(format!("crossccl {}", d.version));
        let mut names = d.devices.clone();
        names.dedup();
        facts.push(match &names[..] {
            [one] if d.devices.len() == 1 => one.clone(),
            [one] => format!("{} x {one}", d.devices.len()),
            [first, .., last] => format!("devices: {first} to {last}"),
            [] => String::new(),
        });
        facts.push(counted(d.cores, "core"));
        facts.push(medians(documents));
        if d.driven_by != Drive::OneCall.name() {
            facts.push(format!("driven by: {}", d.driven_by));
        }
        facts.push(format!("algorithm asked for: {}", d.algorithm_asked));
        if d.unalign > 0 {
            facts.push(format!("data {} into each buffer", counted(d.unalign, "element")));
        }
        if let Some(blocks) = d.max_blocks {
            facts.push(format!("at most {}", counted(blocks as usize, "block")));
        }
    }
    for d in documents {
        if let Some(members) = d.group_size.filter(|members| *members != d.ranks) {
            facts.push(format!("groups of {}", counted(members, "rank")));
        }
        if let (Some(shape), Some(axis)) = (&d.shape, d.axis) {
            let extents: Vec<_> = shape.iter().map(usize::to_string).collect();
            facts.push(format!("axis {axis} of {}", extents.join("x")));
        }
    }
    if documents.iter().any(|d| d.failure.is_some()) {
        facts.push("not complete: some sizes could not be measured".into());
    }
    facts.push("GB are 10^9 bytes".into());
    facts.retain(|fact| !fact.is_empty());
    facts
}

/// Of how many calls, and whether that was enough.
fn medians(documents: &[Document]) -> String {
    let rows = documents.iter().flat_map(|d| &d.rows);
    let measured: Vec<_> = rows.flat_map(|row| [row.out_of_place, row.in_place]).flatten().collect();
    let least = measured.iter().map(|m| m.calls).min().unwrap_or_default();
    let most = measured.iter().map(|m| m.calls).max().unwrap_or_default();
    let calls = if least == most { counted(most, "call") } else { format!("{least} to {most} calls") };
    match measured.iter().filter(|m| m.stable == Some(false)).count() {
        0 => format!("median of {calls}"),
        n => format!("median of {calls}, {n} of {} not stable", measured.len()),
    }
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Lines of about [`LINE`] letters. A fact that is longer has a line of its own.
fn wrapped(facts: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for fact in facts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + fact.chars().count() < LINE => {
                line.push_str("; ");
                line.push_str(fact);
            }
            _ => lines.push(fact.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::report::example;

    /// Polygons and polylines of each series; what the legend and the charts have.
    fn shapes(svg: &str) -> Vec<(usize, usize)> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let has = |tag: &str, attribute: &str, colour: &RGBColor| {
            let colour = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
            let nodes = document.descendants().filter(|n| n.has_tag_name(tag));
            nodes.filter(|n| n.attribute(attribute) == Some(&colour)).count()
        };
        COLOURS
            .iter()
            .map(|c| (has("polygon", "fill", c), has("polyline", "stroke", c)))
            .take_while(|n| n.0 > 0)
            .collect()
    }

    #[test]
    fn both_collectives_are_in_one_picture() {
        let documents = [
            example("broadcast", &[(1024, 2.0, 0.5), (4096, 4.0, 1.0), (16384, 9.0, 2.0)]),
            example("reduce-scatter", &[(1024, 3.0, 0.25), (4096, 6.0, 0.5)]),
        ];
        let svg = draw(&documents).unwrap();
        // A marker in the legend and in two charts.
        assert_eq!(shapes(&svg), [(7, 3), (7, 3), (5, 3), (5, 3)]);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<_> = document.descendants().filter_map(|n| n.text()).map(str::trim).collect();
        for text in [
            "crossccl perf broadcast and reduce-scatter: backend cpu, 2 ranks, f32",
            "crossccl 0.0.0; 2 x a <device> & more; 1 core; median of 2 calls; algorithm asked for: auto; GB are 10^9 bytes",
            "broadcast, one-stage, out of place",
            "reduce-scatter, one-stage, in place",
        ] {
            assert!(texts.contains(&text), "{text}: {texts:#?}");
        }
    }

    /// What logarithmic axes cannot show is left out and counted; nothing else is.
    #[test]
    fn zeros_are_left_out_and_told() {
        let svg =
            draw(&[example("broadcast", &[(0, 1.0, 0.0), (4, 0.0, 0.0), (8, 2.0, 0.0), (16, 2.0, 3.0)])]).unwrap();
        // Two times, and one bandwidth, which makes no line.
        assert_eq!(shapes(&svg), [(4, 2), (4, 2)]);
        assert!(svg.contains("4 of 8 points are not shown: logarithmic axes have no 0"), "{svg}");
        assert!(svg.contains("6 of 8 points are not shown: logarithmic axes have no 0"), "{svg}");
        let svg = draw(&[example("broadcast", &[(4, 0.0, 0.0)])]).unwrap();
        assert_eq!(shapes(&svg), [(1, 1), (1, 1)]);
        for text in ["time of a call, median: all are 0", "bus bandwidth (GB/s): all are 0"] {
            assert!(svg.contains(text), "{svg}");
        }
        for svg in [svg, draw(&[example("broadcast", &[(u64::MAX, 1e12, 1e-9)])]).unwrap()] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn an_axis_has_room_around_one_value_and_many() {
        assert_eq!(axis([].into_iter(), 10.0), None);
        for values in [&[1e3][..], &[1e3, 1e3], &[1.0, 2.0], &[5.0, 7e8]] {
            let range = axis(values.iter().copied(), 10.0).unwrap();
            assert!(values.iter().all(|v| range.contains(v) && *v > range.start * 1.1), "{range:?}");
            assert!(range.end / range.start >= 10.0, "{range:?}");
        }
    }

    #[test]
    fn every_axis_has_ticks_and_not_too_many() {
        for octaves in 2..64 {
            for smallest in [1.0, 3.0, 1000.0, 1024.0] {
                let values = [smallest, smallest * f64::from(octaves).exp2()];
                let ticks = size_ticks(&axis(values.into_iter(), 4.0).unwrap(), smallest);
                assert!((2..=10).contains(&ticks.len()), "{values:?}: {ticks:?}");
                assert!(ticks.windows(2).all(|w| w[0] < w[1]));
            }
        }
        for exponent in -12..12 {
            for factor in [1.0, 3.0, 20.0, 1e3, 1e4, 1e5, 1e9, 1e15] {
                let low = 2.7 * 10f64.powi(exponent);
                let ticks = decimal_ticks(&axis([low, low * factor].into_iter(), 10.0).unwrap());
                assert!((2..=16).contains(&ticks.len()), "{low} {factor}: {ticks:?}");
                assert!(ticks.windows(2).all(|w| w[0] < w[1]));
            }
        }
    }

    #[test]
    fn ticks_are_written_as_people_do() {
        assert_eq!([1.0, 512.0, 1024.0, 65536.0].map(size_label), ["1 B", "512 B", "1 KiB", "64 KiB"]);
        assert_eq!([1048576.0, 34359738368.0].map(size_label), ["1 MiB", "32 GiB"]);
        assert_eq!([0.05, 0.2, 1.0, 500.0].map(time_label), ["50 ns", "200 ns", "1 µs", "500 µs"]);
        assert_eq!([1e3, 2e5, 1e6, 5e7].map(time_label), ["1 ms", "200 ms", "1 s", "50 s"]);
        let ticks = decimal_ticks(&(0.0009..0.25));
        let labels: Vec<_> = ticks.iter().map(f64::to_string).collect();
        assert_eq!(labels, ["0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2"]);
    }

    #[test]
    fn long_facts_have_lines_of_their_own() {
        let facts = ["a".repeat(100), "b".repeat(30), "c".repeat(30), "d".repeat(200), "e".into()];
        let lines = wrapped(&facts);
        let lengths: Vec<_> = lines.iter().map(String::len).collect();
        assert_eq!(lengths, [132, 30, 200, 1]);
    }
}
