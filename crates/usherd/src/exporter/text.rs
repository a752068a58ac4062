//! The two text formats: OpenMetrics 1.0.0, and that of Prometheus (0.0.4), which other tools read. A page of
//! code replaces a crate: names and values of labels are Usher's own, and no crate serves both `promtool
//! check metrics` and OpenMetrics parsers, which disagree about the names of counters.

use std::fmt::Write;

use super::families::{Kind, Sample};
use super::request::Format;

/// Encodes samples. Those of one family must stand together.
pub fn encode(format: Format, samples: &[Sample]) -> String {
    let mut text = String::new();
    let mut former = None;
    for sample in samples {
        let family = sample.family;
        let full = match family.kind {
            Kind::Counter => format!("{}_total", family.name),
            Kind::Gauge => family.name.to_owned(),
        };
        if former.replace(family.name) != Some(family.name) {
            let name = match format {
                Format::OpenMetrics => family.name,
                Format::Prometheus => &full,
            };
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            line(&mut text, format_args!("# HELP {name} {}", family.help));
            line(&mut text, format_args!("# TYPE {name} {kind}"));
        }
        let labels: Vec<_> = sample
            .labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = match labels.as_slice() {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        line(&mut text, format_args!("{full}{labels} {}", sample.value));
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

/// Escapes the value of a label. Versions and reasons contain nothing to escape, but a value that did would
/// break the whole answer.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"");
    value.replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::super::families::Family;
    use super::*;

    static REFUSALS: Family = Family {
        name: "usher_refusals",
        kind: Kind::Counter,
        help: "Refusals.",
    };

    #[test]
    fn counters_have_the_names_of_each_format() {
        let sample = |reason: &str, value| Sample {
            family: &REFUSALS,
            labels: vec![("reason", reason.to_owned())],
            value,
        };
        let samples = [sample("stale", 3), sample("a\"b\\c\nd", 0)];
        let lines = "usher_refusals_total{reason=\"stale\"} 3\n\
                     usher_refusals_total{reason=\"a\\\"b\\\\c\\nd\"} 0\n";
        assert_eq!(
            encode(Format::OpenMetrics, &samples),
            format!(
                "# HELP usher_refusals Refusals.\n# TYPE usher_refusals counter\n{lines}# EOF\n"
            )
        );
        assert_eq!(
            encode(Format::Prometheus, &samples),
            format!(
                "# HELP usher_refusals_total Refusals.\n# TYPE usher_refusals_total counter\n{lines}"
            )
        );
    }
}
