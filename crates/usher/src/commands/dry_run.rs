//! `usher policy apply --dry-run`: what an apply would change and end. Changes nothing. The keeper says which
//! live connections it would end.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use usher_analysis::{
    Change, Known, ModuleChange, Network, TrafficChange, difference, module_changes,
    traffic_changes,
};
use usher_daemon::control::{ControlError, ask_daemon};
use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_local::requests::{EndingView, WouldEnd, WouldEndView};
use usher_local::{paths, roles};

use super::analysis::hosts::Loaded;
use super::analysis::{NO, NOT_KNOWN, diff};
use super::{configuration, policy};
use crate::ending;
use crate::failure::Failure;
use crate::output::Output;

/// The exit code where an apply would be refused, as for a policy with mistakes.
const WRONG: u8 = 2;

/// Limits of the text for people: changes, and names in a line. The rest is counted.
const CHANGES: usize = 50;
const NAMES: usize = 20;

/// The rights, the treatment of traffic and the settings of modules that change.
type Differences = (Vec<Change>, Vec<TrafficChange>, Vec<ModuleChange>);

/// The result that an apply would have.
struct Forecast {
    /// Generation of the configuration in force.
    generation: u64,
    /// Files and users that differ from the configuration in force.
    differs: Vec<String>,
    /// The gains and losses of each user.
    changes: Result<Vec<Change>, Failure>,
    /// The programs whose traffic is treated otherwise; empty where `changes` are unknown.
    traffic: Vec<TrafficChange>,
    /// The modules whose settings change; empty where `changes` are unknown.
    modules: Vec<ModuleChange>,
    /// Live sessions that would end, with their connections.
    would_end: Result<Vec<EndingView>, Failure>,
    /// Whether a keeper runs; without one no new connection is admitted.
    keeper_runs: bool,
    /// The reason that an apply would be refused: a daemon would not take it, or one that it needs does not
    /// run.
    refusal: Option<Failure>,
}

/// Prints the forecast of an apply with the same `take_ssh_port`. The exit code says whether an apply would
/// be refused, a user gains or loses access, or a session would end.
///
/// # Errors
/// As [`policy::candidate`]; when the keeper runs and does not answer.
pub fn run(output: &Output, take_ssh_port: bool) -> Result<u8, Failure> {
    let lock = configuration::lock()?;
    let (mut candidate, checked) = policy::candidate()?;
    let present = configuration::in_force()?;
    candidate.generation = present.generation + 1;
    candidate.continue_hosts(&checked.policy.hosts, &present);
    let ssh = if take_ssh_port {
        None
    } else {
        policy::spare_ssh(&checked).err()
    };
    let refusal = ssh.or_else(|| configuration::refusal(&candidate, &checked.policy));
    let (would_end, keeper_runs) = would_end(&candidate)?;
    drop(lock);
    let differs = differs(&present, &candidate);
    let generation = present.generation;
    let (changes, traffic, modules) = match changes(present, candidate, checked) {
        Ok((changes, traffic, modules)) => (Ok(changes), traffic, modules),
        Err(failure) => (Err(failure), Vec::new(), Vec::new()),
    };
    let forecast = Forecast {
        generation,
        differs,
        changes,
        traffic,
        modules,
        would_end,
        keeper_runs,
        refusal,
    };
    // JSON of `usher policy apply --dry-run`: [`forecast`].
    output.print(&forecast.view(), || forecast_text(&forecast));
    Ok(forecast.code())
}

/// The gains and losses of users on this host, the programs whose traffic is treated otherwise, and the
/// modules with other settings.
fn changes(present: Applied, candidate: Applied, checked: Checked) -> Result<Differences, Failure> {
    let before = if present.sources.is_empty() {
        // No policy was ever applied, or only one without files: nothing is permitted.
        Network::default()
    } else {
        let checked = present.check()?;
        of_this_host("in force", present, checked)?
    };
    let after = of_this_host("written", candidate, checked)?;
    Ok((
        difference(&before, &after),
        traffic_changes(&before, &after),
        module_changes(&before, &after),
    ))
}

fn of_this_host(which: &str, applied: Applied, checked: Checked) -> Result<Network, Failure> {
    let loaded = Loaded::of_this_host(applied, checked);
    let loaded = loaded.map_err(|error| {
        Failure::Refused(format!(
            "cannot read the configuration that is {which}: {error}"
        ))
    })?;
    Ok(loaded.network)
}

/// The live sessions that would end, or the reason why they are unknown; and whether a keeper runs.
#[allow(clippy::type_complexity, reason = "the inner error is an answer, too")]
fn would_end(candidate: &Applied) -> Result<(Result<Vec<EndingView>, Failure>, bool), Failure> {
    let request = match WouldEnd::new(candidate) {
        Ok(request) => request,
        Err(error) => return Ok((Err(Failure::refused(error)), true)),
    };
    match ask_daemon(roles::Keeper, &request) {
        Ok(WouldEndView { ended }) => Ok((Ok(ended), true)),
        Err(ControlError::NotRunning { .. }) if configuration::keeper_has_run() => {
            let reason = "the keeper does not run on this host, and connections that it admitted \
                          stay open without it; start it (systemctl start usher-keeper) and ask \
                          again";
            Ok((Err(Failure::refused(reason)), false))
        }
        Err(ControlError::NotRunning { .. }) => Ok((Ok(Vec::new()), false)),
        Err(error) => Err(error.into()),
    }
}

/// The files and users that differ from the configuration in force.
fn differs(present: &Applied, candidate: &Applied) -> Vec<String> {
    let mut differs = Vec::new();
    let files = |applied: &Applied| -> BTreeSet<(String, String)> {
        let sources = applied.sources.iter();
        sources
            .map(|file| (file.name.clone(), file.text.clone()))
            .collect()
    };
    let (before, after) = (files(present), files(candidate));
    let names = before.symmetric_difference(&after).map(|(name, _)| name);
    differs.extend(names.cloned().collect::<BTreeSet<String>>());
    let users = present.users.keys().chain(candidate.users.keys());
    let users: BTreeSet<_> = users
        .filter(|user| present.users.get(*user) != candidate.users.get(*user))
        .collect();
    differs.extend(
        users
            .into_iter()
            .map(|user| format!("{}/{user}", paths::USERS_DIRECTORY)),
    );
    if present.revoked_keys != candidate.revoked_keys {
        differs.push(paths::REVOKED_KEYS.into());
    }
    if present.user_authorities != candidate.user_authorities {
        differs.push(paths::USER_AUTHORITIES.into());
    }
    differs
}

impl Forecast {
    fn view(&self) -> Value {
        let unknown = |failure: &Failure| failure.to_string();
        let (changes, would_end) = (self.changes.as_ref(), self.would_end.as_ref());
        // JSON object [`forecast`]:
        //   generation: The number of the configuration in force; 0: none is.
        //   differs: List of texts: the files and users that differ from the configuration in force.
        //   changes: List of [`difference::Change`]: who gains and who loses what. Null: unknown.
        //   changes_unknown: The reason that the changes are unknown, or null.
        //   traffic: List of [`TrafficChange`]: programs whose traffic is treated otherwise.
        //   modules: List of [`ModuleChange`]: modules whose settings change.
        //   would_end: List of [`EndingView`]: the sessions that would end. Null: unknown.
        //   would_end_unknown: The reason that these are unknown, or null.
        //   keeper_runs: True if a keeper runs.
        //   refused: The reason that an apply would be refused, or null.
        json!({
            "generation": self.generation, "differs": self.differs, "changes": changes.ok(),
            "traffic": self.traffic, "modules": self.modules,
            "changes_unknown": changes.err().map(unknown), "would_end": would_end.ok(),
            "would_end_unknown": would_end.err().map(unknown), "keeper_runs": self.keeper_runs,
            "refused": self.refusal.as_ref().map(unknown),
        })
    }

    fn code(&self) -> u8 {
        if self.refusal.is_some() {
            return WRONG;
        }
        match (&self.changes, &self.would_end) {
            (Ok(changes), _) if !changes.is_empty() => NO,
            (Ok(_), _) if !self.traffic.is_empty() || !self.modules.is_empty() => NO,
            (_, Ok(ending)) if !ending.is_empty() => NO,
            (Ok(_), Ok(_)) => 0,
            _ => NOT_KNOWN,
        }
    }
}

fn forecast_text(forecast: &Forecast) -> String {
    let mut text = String::new();
    let differs = &forecast.differs;
    for name in differs.iter().take(CHANGES) {
        text += &format!("differs from the configuration in force: {name}\n");
    }
    if differs.len() > CHANGES {
        text += &format!("and {} more\n", differs.len() - CHANGES);
    }
    match &forecast.changes {
        Ok(changes)
            if changes.is_empty() && forecast.traffic.is_empty() && forecast.modules.is_empty() =>
        {
            text += diff::NOTHING_CHANGES;
        }
        Ok(changes) => {
            for change in changes.iter().take(CHANGES) {
                text += &diff::change_text(change, NAMES);
            }
            if changes.len() > CHANGES {
                let more = changes.len() - CHANGES;
                text += &format!("and {more} more change(s); --json lists all\n");
            }
            for change in forecast.traffic.iter().take(CHANGES) {
                text += &diff::traffic_text(change);
            }
            if forecast.traffic.len() > CHANGES {
                let more = forecast.traffic.len() - CHANGES;
                text += &format!("and the traffic of {more} more program(s); --json lists all\n");
            }
            for change in &forecast.modules {
                text += &diff::module_text(change);
            }
            let elsewhere = |change: &Change| change.known != Known::ServerOnly;
            if changes
                .iter()
                .any(|change| elsewhere(change) && !change.lose.is_empty())
            {
                text += "this host does not end the connections of its users to other hosts\n";
            }
        }
        Err(reason) => {
            text += &format!("cannot tell who gains and who loses access: {reason}\n");
        }
    }
    text += &match &forecast.would_end {
        Ok(ending) if !ending.is_empty() => ending::ending_lines("would end", ending),
        Ok(_) if forecast.keeper_runs => "no live connection would end\n".to_owned(),
        Ok(_) => "no keeper has run on this host since it was booted, so there are no live \
                  connections\n"
            .to_owned(),
        Err(reason) => format!("cannot tell which live connections would end: {reason}\n"),
    };
    if let Some(refusal) = &forecast.refusal {
        text += &format!("an apply would be refused: {refusal}\n");
    }
    text += &match forecast.generation {
        0 => "nothing has changed: no configuration is in force\n".to_owned(),
        generation => format!("nothing has changed: configuration {generation} stays in force\n"),
    };
    text
}
