//! Small pictures: lines through medians, with bars from the lowest to the highest figure. SVG, written by hand.

use std::fmt::Write as _;
use std::path::Path;

use crate::Outcome;
use crate::measure::Spread;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
/// Room for what is written along the axes.
const LEFT: f64 = 64.0;
const BELOW: f64 = 48.0;
const ABOVE: f64 = 40.0;
const RIGHT: f64 = 24.0;
const COLORS: [&str; 4] = ["#1f77b4", "#888888", "#d62728", "#2ca02c"];

/// A step of 1, 2 or 5 times a power of ten, so that there are some five of them up to `most`.
fn step(most: f64) -> f64 {
    let rough = (most / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|times| times * power).find(|step| *step >= rough).unwrap_or(10.0 * power)
}

/// A picture of some lines, each with a name; both axes begin at 0.
pub(crate) fn lines(title: &str, axes: [&str; 2], lines: &[(&str, Vec<(f64, Spread)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most_x = points().map(|(x, _)| *x).fold(0.0, f64::max);
    let most_y = points().map(|(_, y)| y.max).fold(0.0, f64::max);
    let (step_x, step_y) = (step(most_x), step(most_y));
    let (end_x, end_y) = ((most_x / step_x).ceil() * step_x, (most_y / step_y).ceil() * step_y);
    let x = |value: f64| LEFT + value / end_x * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BELOW - value / end_y * (HEIGHT - BELOW - ABOVE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    // Writing to a String does not fail.
    let mut put = |line: String| {
        let _ = writeln!(svg, "{line}");
    };
    put(format!("<text x=\"{}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\">{title}</text>", WIDTH / 2.0));
    for tick in 0..=(end_x / step_x).round() as u32 {
        let value = f64::from(tick) * step_x;
        let (at, bottom) = (x(value), y(0.0));
        put(format!("<line x1=\"{at:.1}\" y1=\"{bottom:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>", y(end_y)));
        put(format!("<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", bottom + 17.0, round(value)));
    }
    for tick in 0..=(end_y / step_y).round() as u32 {
        let value = f64::from(tick) * step_y;
        let (at, left) = (y(value), x(0.0));
        put(format!("<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>", x(end_x)));
        put(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", left - 8.0, at + 4.0, round(value)));
    }
    let [name_x, name_y] = axes;
    put(format!("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{name_x}</text>", x(end_x / 2.0), HEIGHT - 10.0));
    let middle = y(end_y / 2.0);
    put(format!(
        "<text x=\"16\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle:.1})\">{name_y}</text>"
    ));
    for (nth, (name, points)) in lines.iter().enumerate() {
        let color = COLORS[nth % COLORS.len()];
        let path: Vec<String> = points.iter().map(|(at, s)| format!("{:.1},{:.1}", x(*at), y(s.median))).collect();
        put(format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>", path.join(" ")));
        for (at, spread) in points {
            let (at, low, high) = (x(*at), y(spread.min), y(spread.max));
            put(format!("<line x1=\"{at:.1}\" y1=\"{low:.1}\" x2=\"{at:.1}\" y2=\"{high:.1}\" stroke=\"{color}\"/>"));
            put(format!("<circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{color}\"/>", y(spread.median)));
        }
        let line = ABOVE + 18.0 * (nth as f64 + 1.0);
        put(format!(
            "<rect x=\"{}\" y=\"{:.1}\" width=\"14\" height=\"3\" fill=\"{color}\"/>",
            LEFT + 12.0,
            line - 5.0
        ));
        put(format!("<text x=\"{}\" y=\"{line:.1}\">{name}</text>", LEFT + 32.0));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Puts a picture into this file.
pub(crate) fn write(path: &Path, picture: &str) -> Outcome<()> {
    std::fs::write(path, picture).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

/// A figure on an axis, without the rest of binary fractions.
fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_about_five() {
        for (most, expected) in [(8.0, 2.0), (1.0, 0.2), (0.7, 0.2), (40.0, 10.0), (25.0, 5.0)] {
            assert!((step(most) - expected).abs() < 1e-9, "{most}: {}", step(most));
        }
    }

    #[test]
    fn every_figure_is_inside_the_picture() {
        let point = |x: f64, y: f64| (x, Spread::of([0.9 * y, y, 1.1 * y]));
        let svg = lines("t", ["GiB", "s"], &[("a", vec![point(1.0, 0.5), point(8.0, 4.0)]), ("b", vec![])]);
        assert_eq!(svg.matches("<circle").count(), 2);
        for (name, most) in [("cx=\"", WIDTH), ("cy=\"", HEIGHT), ("y2=\"", HEIGHT), ("x2=\"", WIDTH)] {
            for rest in svg.split(name).skip(1) {
                let value: f64 = rest.split('"').next().unwrap().parse().unwrap();
                assert!((0.0..=most).contains(&value), "{name}{value}");
            }
        }
    }
}
