//! The cost of mandatory access control for programs: see `usher-bench-mac`. Each other LSM is counted in
//! its own guest, because only a boot changes the LSMs in force.

use std::error::Error;
use std::path::Path;

use usher_bench::Figure;

use crate::guest;
use crate::report::{Row, relate_by_ending};

/// The time limit of each guest in seconds: several times what it takes on idle processors.
const SECONDS: u32 = 3600;

/// The state to which the others are compared: no LSM program.
const WITHOUT: &str = "without";

/// The other states: six of the first guest, then one LSM for each further guest.
const COMPARED: [&str; 8] = [
    "empty",
    "no_module",
    "none",
    "file_open",
    "biba",
    "level",
    "apparmor",
    "selinux",
];

/// LSMs, and the parameters of a kernel that has them in force.
const LSMS: [(&str, &str); 2] = [
    (
        "apparmor",
        "lsm=lockdown,yama,landlock,apparmor,bpf apparmor=1",
    ),
    (
        "selinux",
        "lsm=lockdown,yama,landlock,selinux,bpf selinux=1 enforcing=0",
    ),
];

/// Measures on this kernel, with so many rounds.
pub fn measure(kernel: &str, programs: &Path, rounds: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    let count = |parameters: &str, lsm: Option<&str>| {
        let options = ["--copies-words", "--append", parameters];
        let arguments: Vec<String> = std::iter::once(rounds.to_string())
            .chain(lsm.map(str::to_owned))
            .collect();
        let program = programs.join("usher-bench-mac");
        let output = guest::run_as(&options, kernel, SECONDS, &program, &arguments)?;
        Ok::<Vec<Figure>, Box<dyn Error>>(serde_json::from_slice(&output)?)
    };
    eprintln!("mandatory access control, in a guest ...");
    let mut figures = count("", None)?;
    for (lsm, parameters) in LSMS {
        eprintln!("{lsm}, in a guest ...");
        figures.extend(count(parameters, Some(lsm))?);
    }
    Ok(rows(kernel, figures))
}

/// A row of each figure, with its ratio to the same act without LSM programs.
fn rows(kernel: &str, figures: Vec<Figure>) -> Vec<Row> {
    let rows = figures.into_iter().map(|figure| guest::row(kernel, figure));
    let mut rows: Vec<Row> = rows.collect();
    let base = format!("/{WITHOUT}");
    let endings = COMPARED.map(|state| format!("/{state}"));
    let compared: Vec<&str> = endings.iter().chain([&base]).map(String::as_str).collect();
    relate_by_ending(&mut rows, &base, &compared);
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows
}

/// Prints the table for people: of each act the instructions without LSM programs, and the ratios of all
/// states to them.
pub fn print(rows: &[Row]) {
    println!("mandatory access control: instructions, medians, and ratios to those without");
    print!("{:<12} {WITHOUT:>10}", "");
    for state in COMPARED {
        print!(" {state:>10}");
    }
    println!();
    let base = format!("/{WITHOUT}");
    for row in rows {
        let Some(act) = row.name.strip_suffix(&base) else {
            continue;
        };
        print!(
            "{:<12} {:>10.0}",
            act.trim_start_matches("mac/"),
            row.median
        );
        for state in COMPARED {
            let name = format!("{act}/{state}");
            match rows.iter().find(|row| row.name == name) {
                Some(Row {
                    ratio: Some(ratio), ..
                }) => print!(" {ratio:>10.3}"),
                _ => print!(" {:>10}", "-"),
            }
        }
        println!();
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, rows};

    #[test]
    fn each_act_is_compared_to_itself_without_programs() {
        let figure = |name: &str, count| Figure {
            name: name.into(),
            unit: "instructions".into(),
            samples: vec![count],
        };
        let figures = vec![
            figure("mac/stat/without", 100.0),
            figure("mac/stat/none", 150.0),
            figure("mac/pipe/without", 200.0),
            figure("mac/stat/selinux", 110.0),
            figure("mac/pipe/none", 200.0),
        ];
        let found: Vec<_> = rows("6.18", figures)
            .into_iter()
            .map(|row| (row.name, row.ratio))
            .collect();
        let expected = [
            ("mac/pipe/none", 1.0),
            ("mac/pipe/without", 1.0),
            ("mac/stat/none", 1.5),
            ("mac/stat/selinux", 1.1),
            ("mac/stat/without", 1.0),
        ]
        .map(|(name, ratio)| (name.to_owned(), Some(ratio)));
        assert_eq!(found, expected);
    }
}
