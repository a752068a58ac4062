//! The metrics, and the daemons' numbers that they show. docs/monitoring.md describes them for people.

use usher_bpf::Counted;
use usher_daemon::control::NumbersView;
use usher_daemon::role::Role;
use usher_kernel::{admission, destinations, ownership, ports, protected};
use usher_proto::refusal::Refusal;

use super::asking::Answer;

/// Types of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, since the start of the daemon or of its programs in the kernel.
    Counter,
    /// Rises and falls.
    Gauge,
}

/// A metric.
#[derive(Debug)]
pub struct Family {
    /// Its name; samples of counters end with `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its help text.
    pub help: &'static str,
}

/// A value of a metric.
#[derive(Debug)]
pub struct Sample {
    /// The metric.
    pub family: &'static Family,
    /// Names and values of its labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: u64,
}

macro_rules! families {
    ($($family:ident = $kind:ident $name:literal: $help:literal;)*) => {
        $(static $family: Family = Family { name: $name, kind: Kind::$kind, help: $help };)*

        /// All metrics, in their order.
        static FAMILIES: &[&Family] = &[$(&$family),*];
    };
}

families! {
    DAEMON_UP = Gauge "usher_daemon_up": "Whether the daemon answers.";
    DAEMON_HANGS = Gauge "usher_daemon_hangs":
        "Whether the daemon takes connections and has not answered for 2 seconds.";
    DAEMON_INFO = Gauge "usher_daemon_info": "The version of a daemon that answers; always 1.";
    GENERATION = Gauge "usher_daemon_generation":
        "Generation of the configuration that the daemon has in force; 0 for daemons without one.";
    TROUBLES = Gauge "usher_daemon_troubles":
        "Troubles that keep the daemon from its work; usher doctor explains them.";
    LINK_UP = Gauge "usher_link_up": "Whether the daemon is connected to another that it needs.";
    ENTRIES = Gauge "usher_table_entries": "Entries of a table of the daemon.";
    LIMIT = Gauge "usher_table_limit": "The number of entries at which the table refuses the next one.";
    CLOCKS = Gauge "usher_clocks_apart":
        "Hosts for whose clock a session was refused within the last hour.";
    KEYS = Gauge "usher_keys_ending": "Keys in the lists of users that end within 14 days.";
    STATE = Gauge "usher_state": "Whether something is in force.";
    REFUSALS = Counter "usher_refusals": "Requests, connections and calls that were refused, by reason.";
    DROPPED = Counter "usher_dropped_packets":
        "Packets dropped for lack of the protection that the policy demands, or by its discard.";
    PLAIN = Counter "usher_plaintext_packets":
        "Packets of governed programs that passed without protection: bypass, or optional.";
    PROTECTED = Counter "usher_protected_packets": "Packets that were protected as the policy demands.";
    EVENTS = Counter "usher_events": "Other events, by name.";
    SCRAPES = Counter "usher_exporter_scrapes": "Scrapes that the exporter has answered or is answering.";
    EXPORTER_REFUSED = Counter "usher_exporter_refused":
        "Connections and requests that the exporter has not answered with metrics, by reason.";
    UNKNOWN = Gauge "usher_exporter_unknown_numbers":
        "Numbers of the daemon that this exporter does not know: it is of another version.";
}

/// The place of a daemon's number.
struct Place {
    daemon: &'static str,
    number: String,
    family: &'static Family,
    /// A label with its value, in addition to the label `daemon`.
    label: Option<(&'static str, String)>,
}

/// The numbers of admission that count refusals of connections with a token.
const REFUSED_TOKENS: &[&str] = &[
    "token_unknown",
    "token_other_service",
    "token_expired",
    "token_foreign",
    "token_out_of_range",
    "token_replayed",
    "token_mismatch",
    "token_table_full",
    "token_withdrawn",
    "token_other_address",
    "token_overloaded",
];

/// The places of all numbers of all daemons.
fn places() -> Vec<Place> {
    let mut places = Vec::new();
    put_keeper(&mut Daemon::new("keeper", &mut places));
    put_verifier(&mut Daemon::new("verifier", &mut places));
    put_recorder(&mut Daemon::new("recorder", &mut places));
    put_signer(&mut Daemon::new("signer", &mut places));
    Daemon::new("proxy", &mut places).tables(&["listeners", "connections"]);
    put_protector(&mut Daemon::new("protector", &mut places));
    put_labeller(&mut Daemon::new("labeller", &mut places));
    places
}

/// The places of one daemon's numbers.
struct Daemon<'p> {
    name: &'static str,
    places: &'p mut Vec<Place>,
}

impl<'p> Daemon<'p> {
    fn new(name: &'static str, places: &'p mut Vec<Place>) -> Self {
        Self { name, places }
    }

    fn put(&mut self, number: &str, family: &'static Family, label: Option<(&'static str, &str)>) {
        self.places.push(Place {
            daemon: self.name,
            number: number.to_owned(),
            family,
            label: label.map(|(label, value)| (label, value.to_owned())),
        });
    }

    /// Enters numbers whose names are also the values of their label.
    fn named(&mut self, family: &'static Family, label: &'static str, numbers: &[&str]) {
        for number in numbers {
            self.put(number, family, Some((label, number)));
        }
    }

    fn tables(&mut self, numbers: &[&str]) {
        self.named(&ENTRIES, "table", numbers);
    }

    fn events(&mut self, numbers: &[&str]) {
        self.named(&EVENTS, "event", numbers);
    }

    fn states(&mut self, numbers: &[&str]) {
        self.named(&STATE, "state", numbers);
    }

    fn refusals(&mut self, reasons: &[&str]) {
        self.named(&REFUSALS, "reason", reasons);
    }

    fn refusal(&mut self, number: &str, reason: &str) {
        self.put(number, &REFUSALS, Some(("reason", reason)));
    }

    fn link(&mut self, number: &str, peer: &str) {
        self.put(number, &LINK_UP, Some(("peer", peer)));
    }
}

fn put_keeper(keeper: &mut Daemon<'_>) {
    keeper.tables(&[
        "sessions",
        "connections",
        "queues",
        "ends_waiting",
        "limits_not_kept",
    ]);
    for table in ["sessions", "connections", "queues"] {
        keeper.put(&format!("{table}_limit"), &LIMIT, Some(("table", table)));
    }
    keeper.states(&["fence"]);
    keeper.link("recorder_connected", "recorder");
    keeper.events(&["failed_starts"]);
    keeper.refusal("waiting_refused", "waiting");
    for name in admission::Counters::NAMES {
        match name.strip_prefix("refused_") {
            Some(reason) => keeper.refusal(name, reason),
            None if REFUSED_TOKENS.contains(name) => keeper.refusals(&[name]),
            None => keeper.events(&[name]),
        }
    }
    keeper.refusals(destinations::Counters::NAMES);
    keeper.refusals(ports::Counters::NAMES);
    for name in protected::Counters::NAMES {
        let number = format!("packets_{name}");
        match *name {
            "protected" => keeper.put(&number, &PROTECTED, Some(("direction", "arrived"))),
            name => keeper.put(&number, &DROPPED, Some(("reason", name))),
        }
    }
    keeper.refusals(&ownership::Reason::ALL.map(|(_, name)| name));
}

fn put_verifier(verifier: &mut Daemon<'_>) {
    verifier.tables(&["channels", "half_open"]);
    verifier.link("keeper_connected", "keeper");
    verifier.put("clocks_apart", &CLOCKS, None);
    verifier.put("keys_ending", &KEYS, None);
    verifier.refusals(&["half_open_dropped"]);
    for refusal in Refusal::ALL {
        verifier.refusal(&format!("refused_{}", refusal.name()), refusal.name());
    }
}

fn put_recorder(recorder: &mut Daemon<'_>) {
    recorder.tables(&["records"]);
    recorder.events(&["authentications", "ends"]);
    recorder.refusal("refused", "record");
}

fn put_signer(signer: &mut Daemon<'_>) {
    signer.tables(&[
        "sessions",
        "tickets",
        "agents",
        "plain_held",
        "plain_gates",
        "programs_found",
        "programs_missing",
    ]);
    signer.states(&["tokens", "gates_lasting"]);
    signer.link("courier_connected", "courier");
    signer.put("clocks_apart", &CLOCKS, None);
    signer.events(&["plain_announced"]);
    signer.refusal("plain_refused", "plain");
    signer.refusals(ports::Counters::NAMES);
}

fn put_protector(protector: &mut Daemon<'_>) {
    protector.tables(&[
        "applications",
        "names",
        "spd_entries",
        "adopted_sockets",
        "peers",
        "sas_wanted",
        "sas",
    ]);
    protector.states(&["guarded"]);
    let counters = usher_ipsec::Counters::NAMES.iter();
    for name in counters.chain(usher_ipsec::ServiceCounters::NAMES) {
        let (family, label, value) = match *name {
            "arrived_plain" => (&PLAIN, "direction", "arrived"),
            "left_plain" => (&PLAIN, "direction", "left"),
            "arrived_protected" => (&PROTECTED, "direction", "arrived"),
            "left_protected" => (&PROTECTED, "direction", "left"),
            "service_protected" => (&PROTECTED, "direction", "left_service"),
            "discarded" | "unmarked" => (&REFUSALS, "reason", *name),
            name if name.ends_with("s_refused") => (&REFUSALS, "reason", name),
            "service_kept" | "service_refused" | "service_unreadable" => {
                (&DROPPED, "reason", *name)
            }
            name if name.starts_with("refused_") || name.starts_with("kept_") => {
                (&DROPPED, "reason", name)
            }
            name => (&EVENTS, "event", name),
        };
        protector.put(name, family, Some((label, value)));
    }
}

fn put_labeller(labeller: &mut Daemon<'_>) {
    labeller.tables(&["modules", "hooks"]);
    labeller.states(&["guarded"]);
    labeller.refusal("refusals", "modules");
}

/// The samples of a scrape, by the daemons' answers and the exporter's own numbers.
pub fn collect(answers: &[(&'static Role, Answer)], own: &[(&'static str, u64)]) -> Vec<Sample> {
    let places = places();
    let mut samples = Vec::new();
    for (role, answer) in answers {
        let mut put = |family, label: Option<(&'static str, String)>, value| {
            let daemon = ("daemon", role.name.to_owned());
            samples.push(Sample {
                family,
                labels: std::iter::once(daemon).chain(label).collect(),
                value,
            });
        };
        put(
            &DAEMON_UP,
            None,
            matches!(answer, Answer::Numbers(_)).into(),
        );
        put(&DAEMON_HANGS, None, matches!(answer, Answer::Hangs).into());
        let Answer::Numbers(view) = answer else {
            continue;
        };
        put(&DAEMON_INFO, Some(("version", view.version.clone())), 1);
        put(&GENERATION, None, view.generation);
        put(&TROUBLES, None, view.troubles);
        let of_role = || places.iter().filter(|place| place.daemon == role.name);
        for place in of_role() {
            let value = view.numbers.get(&place.number).copied();
            // Daemons leave out counters that are 0. Show these as 0, so that the first refusal is a rise.
            let absent = (place.family.kind == Kind::Counter).then_some(0);
            if let Some(value) = value.or(absent) {
                put(place.family, place.label.clone(), value);
            }
        }
        put(&UNKNOWN, None, unknown(view, of_role()));
    }
    samples.extend(own.iter().map(|(name, value)| {
        Sample {
            family: match *name {
                "scrapes" => &SCRAPES,
                _ => &EXPORTER_REFUSED,
            },
            labels: name
                .strip_prefix("refused_")
                .map(|reason| ("reason", reason.to_owned()))
                .into_iter()
                .collect(),
            value: *value,
        }
    }));
    let place = |family: &Family| FAMILIES.iter().position(|one| one.name == family.name);
    samples.sort_by_key(|sample| place(sample.family));
    samples
}

/// How many numbers have no place.
fn unknown<'p>(view: &NumbersView, places: impl Iterator<Item = &'p Place>) -> u64 {
    let known: std::collections::BTreeSet<&String> = places.map(|place| &place.number).collect();
    view.numbers
        .keys()
        .filter(|name| !known.contains(name))
        .count() as u64
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use usher_daemon::role::HasRole;
    use usher_local::roles;

    use super::*;

    const DOCUMENT: &str = include_str!("../../../../docs/monitoring.md");
    const ALERTS: &str = include_str!("../../../../packaging/prometheus/usher.rules.yml");
    const DASHBOARD: &str = include_str!("../../../../packaging/grafana/usher.json");

    fn sample_names() -> BTreeSet<String> {
        let names = FAMILIES.iter().map(|family| match family.kind {
            Kind::Counter => format!("{}_total", family.name),
            Kind::Gauge => family.name.to_owned(),
        });
        names.collect()
    }

    /// The words of a text that could be names of metrics.
    fn metrics_of(text: &str) -> BTreeSet<String> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let metrics = words.filter(|word| word.starts_with("usher_"));
        metrics.map(str::to_owned).collect()
    }

    #[test]
    fn the_document_has_each_metric_with_its_type() {
        assert_eq!(metrics_of(DOCUMENT), sample_names());
        for family in FAMILIES {
            let (name, kind) = match family.kind {
                Kind::Counter => (format!("{}_total", family.name), "counter"),
                Kind::Gauge => (family.name.to_owned(), "gauge"),
            };
            let row = format!("| `{name}` | {kind} |");
            assert!(DOCUMENT.contains(&row), "{row}");
        }
    }

    #[test]
    fn alerts_and_dashboard_use_metrics_that_exist() {
        let names = sample_names();
        for text in [ALERTS, DASHBOARD] {
            let used = metrics_of(text);
            assert!(!used.is_empty());
            assert!(used.is_subset(&names), "{used:?}");
        }
        serde_json::from_str::<serde_json::Value>(DASHBOARD).unwrap();
    }

    #[test]
    fn each_number_has_a_series_of_its_own() {
        let places = places();
        let series = places
            .iter()
            .map(|place| (place.daemon, place.family.name, place.label.clone()));
        let mut seen = BTreeSet::new();
        for one in series {
            assert!(seen.insert(one.clone()), "{one:?}");
        }
        let numbers: BTreeSet<_> = places
            .iter()
            .map(|place| (place.daemon, &place.number))
            .collect();
        assert_eq!(numbers.len(), places.len());
    }

    #[test]
    fn a_number_without_a_place_is_counted_and_not_shown() {
        let view = |name: &str| {
            Answer::Numbers(NumbersView {
                version: "1".into(),
                generation: 0,
                numbers: BTreeMap::from([(name.to_owned(), 7)]),
                troubles: 0,
            })
        };
        let shown = |name: &str| {
            let samples = collect(&[(roles::Proxy::ROLE, view(name))], &[]);
            let unknown = samples
                .iter()
                .find(|sample| sample.family.name == UNKNOWN.name);
            let count = samples.iter().filter(|sample| sample.value == 7).count();
            (unknown.unwrap().value, count)
        };
        assert_eq!(shown("connections"), (0, 1));
        assert_eq!(shown("of_the_next_version"), (1, 0));
    }

    #[test]
    fn promtool_accepts_the_alerts() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");
        for arguments in [
            ["check", "rules", "usher.rules.yml"],
            ["test", "rules", "usher.rules.test.yml"],
        ] {
            let done = std::process::Command::new("promtool")
                .args(arguments)
                .current_dir(folder)
                .output();
            match done {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    println!("skipped: no promtool here (Debian's package prometheus)");
                    return;
                }
                done => {
                    let done = done.unwrap();
                    assert!(done.status.success(), "{done:?}");
                }
            }
        }
    }
}
