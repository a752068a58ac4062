//! `make demo-attack` shows what mandatory access control and the other parts are for: a mail
//! service whose `imap` has a planted command execution, attacked in several configurations.
//!
//! Each attack is carried out, and its effect decides the cell. Exit status 0: the table is the one
//! that docs/demo-attack.md shows; 1: a cell differs, or the demonstration could not be carried out;
//! 2: the command line is wrong; 3: this kernel cannot run it.
#![forbid(unsafe_code)]

mod inside;
mod place;
mod rows;
mod table;
mod wire;
mod world;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use usher_lab::{Interruption, Lab};

use rows::REMAINS;
use table::{CONFIGURATIONS, Cell, Table};
use world::World;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Attacks a mail service with and without each part of Usher, and prints what was reached
#[derive(Debug, Parser)]
struct Options {
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
    /// Print the script of each attack as well, and what it printed
    #[arg(long)]
    show: bool,
    /// Only this column of the table, such as 'netAuth + biba'; may stand several times
    #[arg(long = "only", value_name = "CONFIGURATION", value_parser = column)]
    columns: Vec<usize>,
    /// Print the table that the documentation shows, and try nothing
    #[arg(long, conflicts_with_all = ["json", "show", "columns"])]
    expected: bool,
}

/// The column of a configuration.
fn column(name: &str) -> Result<usize, String> {
    let names = CONFIGURATIONS.map(|one| one.name);
    let found = names.iter().position(|one| *one == name);
    found.ok_or_else(|| format!("the configurations are: {}", names.join(", ")))
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.columns.is_empty() {
        options.columns = (0..CONFIGURATIONS.len()).collect();
    }
    let interruption = Interruption::of("usher-demo-attack");
    let result = if options.expected {
        say(&format!("{}\n{REMAINS}\n", Table::expected().markdown())).map(|()| ExitCode::SUCCESS)
    } else {
        run(&options, &interruption)
    };
    interruption.give_way();
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("usher-demo-attack: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> Outcome {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// What the demonstration is doing now.
pub(crate) fn progress(text: &str) {
    eprintln!("usher-demo-attack: {text}");
}

fn run(options: &Options, interruption: &Interruption) -> Outcome<ExitCode> {
    let begin = Instant::now();
    let needs = |part: fn(&table::Configuration) -> bool| {
        let mut columns = options.columns.iter();
        columns.any(|column| part(&CONFIGURATIONS[*column]))
    };
    let needs_modules = needs(|one| one.biba || one.bsdextended);
    if needs_modules && std::env::var_os("USHER_VM").is_none() {
        progress(
            "modules decide for the whole system, so they are loaded in a virtual machine only",
        );
        return Ok(elsewhere());
    }
    progress("hosts, users, services");
    let lab = Lab::new()?;
    interruption.removes(lab.remover())?;
    let mut world = World::new(lab)?;
    let lacking = world.lacking(needs(|one| one.ipsec), needs_modules)?;
    if !lacking.is_empty() {
        for what in lacking {
            progress(&format!("this kernel lacks {what}"));
        }
        return Ok(elsewhere());
    }
    let mut table = Table::empty();
    for column in world::order(&options.columns) {
        let configuration = CONFIGURATIONS[column];
        progress(&format!("configuration: {}", configuration.name));
        let place = world.enter(configuration)?;
        let mut note = |row: &str, cell: Cell| -> Outcome {
            let result = table.note(row, column, cell)?;
            let seconds = begin.elapsed().as_secs();
            progress(&format!(
                "{seconds:>4} s  {}: {row}: {result}",
                configuration.name
            ));
            Ok(())
        };
        place.work(&mut note)?;
        inside::attack(&place, options.show, &mut note)?;
        wire::attack(&place, &mut note)?;
        inside::stay(&place, &mut note)?;
    }
    let differences = table.differences();
    if options.json {
        say(&format!("{:#}\n", table.json()))?;
    } else {
        say(&format!("{}\n{REMAINS}\n", table.markdown()))?;
    }
    for difference in &differences {
        eprintln!("usher-demo-attack: {difference}");
    }
    progress(&format!("{} s", begin.elapsed().as_secs()));
    Ok(if differences.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Says where the demonstration can be seen.
fn elsewhere() -> ExitCode {
    progress("`make demo-attack KERNEL=6.18` shows it in a virtual machine with Debian's kernel");
    ExitCode::from(3)
}
