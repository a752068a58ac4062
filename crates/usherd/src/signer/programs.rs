//! Programs that may connect: the lists of `client` blocks, and the files at their paths.
//!
//! The kernel identifies the executable that connects or asks (bpf/authentication/ticket/program.h); this
//! module maps the policy's paths to executables. It looks the paths up when a policy comes in force. When a
//! program connects to a destination whose list does not have it, the module looks up the list's paths again:
//! so the file of a package's new version is permitted from its first connection on.

mod paths;
mod relisting;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use usher_kernel::ticket::{Limits, Listed, Listing, ProgramId, TicketError};
use usher_policy::{Policy, Programs};
use usher_proto::refusal::Refusal;

use super::tickets::Tickets;
use paths::{Files, List, Paths};
pub use relisting::Relisting;

/// Limit of programs on all lists of a policy, each counted as often as it is listed. As many places are left
/// for replacements.
const LISTED: usize = Limits::LISTED as usize / 2;

/// The lists in force.
#[derive(Default)]
pub struct ListedPrograms {
    state: Mutex<State>,
    paths: Paths,
}

#[derive(Default, Clone)]
struct State {
    /// The number by which the kernel knows a list. It is never reused.
    lists: HashMap<List, NonZeroU32>,
    last_number: u32,
    programs: HashMap<String, ListedProgram>,
    /// The destinations last passed to the kernel.
    destinations: Vec<Destination>,
    /// Programs that are no longer listed and that the kernel still has.
    kept: Vec<ListedProgram>,
}

/// A destination at which plain connections are authenticated, and the number of the list of permitted
/// programs; `None`: any program.
type Destination = (SocketAddr, Option<NonZeroU32>);

/// The reason why the lists of a policy are not in force.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// The lists have too many programs.
    #[error(
        "the `client` blocks of the policy list {0} `programs`, more than {LISTED}: put services \
         with the same programs into one block"
    )]
    TooMany(usize),
    /// No numbers are left for lists.
    #[error("restart usher-signer: it has used all numbers for lists of programs")]
    NoNumbers,
    /// The list of a destination has no number.
    #[error("the list of `programs` for {0} is not in force: apply the policy again")]
    NotInForce(SocketAddr),
    /// The kernel refused a list.
    #[error("cannot list programs: {0}")]
    Listing(TicketError),
    /// The kernel refused a destination.
    #[error(
        "cannot list the addresses of services with `programs`, of which there can be at most \
         {most}: {0}",
        most = Limits::default().destinations
    )]
    Destinations(TicketError),
}

/// A program with its file.
#[derive(Clone)]
struct ListedProgram {
    program: ProgramId,
    /// Its file, kept open: otherwise another file could get its identity.
    _file: Arc<OwnedFd>,
}

impl ListedPrograms {
    /// Puts a policy's plain destinations and lists in force. On errors, what was in force when the permit
    /// came stays in force.
    pub async fn set(&self, tickets: &Tickets, policy: &Policy) -> Result<(), ProgramsError> {
        let permit = self.paths.permit().await;
        let lists = policy.client_services();
        let lists: HashSet<List> = lists
            .filter_map(|entry| entry.programs.listed().cloned())
            .collect();
        let paths = lists.iter().flat_map(|list| list.iter().cloned());
        let files = permit.look_up(paths.collect()).await;
        let before = self.state.lock().clone();
        let mut after = before.clone();
        after.take_lists(lists)?;
        after.programs.clear();
        if let Some(listing) = tickets.listing() {
            if let Err(error) = listing.available()
                && !after.lists.is_empty()
            {
                tracing::warn!(%error, "this kernel does not say which program connects: no one \
                    authenticates to services with a list of `programs`");
            }
            for (path, error) in after.enter(listing, files) {
                tracing::warn!(path, error, "cannot find a program of the policy");
            }
        }
        after.destinations = after.destinations_of(policy)?;
        let outcome = after.put(tickets);
        if outcome.is_err() {
            // The former list had room before and still does.
            if let Err(error) = before.put(tickets) {
                tracing::error!(%error, "cannot put the former `programs` in force again");
            }
            if let Some(listing) = tickets.listing() {
                let mut before = before;
                // The kernel may still know lists by these numbers.
                before.last_number = after.last_number;
                before.retain(listing, after);
                *self.state.lock() = before;
            }
            return outcome;
        }
        if let Some(listing) = tickets.listing() {
            after.retain(listing, before);
        }
        *self.state.lock() = after;
        Ok(())
    }

    /// Checks that these `programs` permit a program. If it is not known, looks up the list's paths again.
    ///
    /// # Errors
    /// [`Refusal::ProgramNotPermitted`].
    pub async fn permit(
        &self,
        tickets: &Tickets,
        programs: &Programs,
        program: Option<ProgramId>,
    ) -> Result<(), Refusal> {
        if self.permits(programs, program) {
            return Ok(());
        }
        if let (Some(list), Some(_), Some(listing)) =
            (programs.listed(), program, tickets.listing())
        {
            self.look_again(listing, list).await;
        }
        if self.permits(programs, program) {
            Ok(())
        } else {
            Err(Refusal::ProgramNotPermitted)
        }
    }

    /// The same, without looking paths up.
    pub fn permits(&self, programs: &Programs, program: Option<ProgramId>) -> bool {
        let Some(list) = programs.listed() else {
            return true;
        };
        let state = self.state.lock();
        let mut found = list.iter().filter_map(|path| state.programs.get(path));
        program.is_some_and(|program| found.any(|found| found.program == program))
    }

    /// The numbers of programs found and missing.
    pub fn numbers(&self) -> [(&'static str, u64); 2] {
        let state = self.state.lock();
        let paths: BTreeSet<&String> = state.lists.keys().flat_map(|list| list.iter()).collect();
        let found = state.programs.len();
        [
            ("programs_found", found as u64),
            ("programs_missing", (paths.len() - found) as u64),
        ]
    }

    async fn look_again(&self, listing: &Listing, list: &List) {
        let Some(mut permit) = self.paths.ask(list).await else {
            return;
        };
        // Leaves out lists that another policy has removed meanwhile.
        let in_force = |list: &List| self.state.lock().lists.contains_key(list);
        let files = permit.look_up_asked(in_force).await;
        let mut state = self.state.lock();
        let former = state.clone();
        for (path, error) in state.enter(listing, files) {
            if former.programs.contains_key(&path) {
                tracing::warn!(path, error, "cannot find a program of the policy any more");
            }
        }
        let wanted = state.wanted();
        if wanted == former.wanted() {
            return;
        }
        if let Err(error) = listing.add(&wanted) {
            tracing::error!(%error, "cannot list programs");
        }
        state.retain(listing, former);
    }
}

impl State {
    /// Takes exactly these lists; known ones keep their numbers.
    fn take_lists(&mut self, lists: HashSet<List>) -> Result<(), ProgramsError> {
        let count: usize = lists.iter().map(|list| list.len()).sum();
        if count > LISTED {
            return Err(ProgramsError::TooMany(count));
        }
        let mut last = self.last_number;
        let former = std::mem::take(&mut self.lists);
        for list in lists {
            let number = match former.get(&list) {
                Some(number) => *number,
                None => {
                    last = last.checked_add(1).ok_or(ProgramsError::NoNumbers)?;
                    NonZeroU32::new(last).unwrap_or(NonZeroU32::MIN)
                }
            };
            self.lists.insert(list, number);
        }
        self.last_number = last;
        Ok(())
    }

    /// Enters the files found at the paths, and returns the paths without one.
    fn enter(&mut self, listing: &Listing, files: Files) -> Vec<(String, String)> {
        let mut missing = Vec::new();
        for (path, file) in files {
            let found = file.map_err(|error| error.to_string()).and_then(|file| {
                let program = listing.identify(file.as_fd());
                let program = program.map_err(|error| error.to_string())?;
                Ok(program.map(|program| ListedProgram {
                    program,
                    _file: Arc::new(file),
                }))
            });
            match found {
                Ok(Some(found)) => {
                    let program = found.program;
                    let former = self.programs.insert(path.clone(), found);
                    if former.is_some_and(|former| former.program != program) {
                        tracing::info!(path, "another file stands at the path of a program");
                    }
                }
                // The kernel cannot identify programs, which is already logged.
                Ok(None) => {}
                Err(error) => {
                    self.programs.remove(&path);
                    missing.push((path, error));
                }
            }
        }
        missing
    }

    /// The entries that the kernel should have.
    fn wanted(&self) -> HashSet<Listed> {
        let listed = self.lists.iter().flat_map(|(list, number)| {
            let found = list.iter().filter_map(|path| self.programs.get(path));
            found.map(|found| Listed {
                list: *number,
                program: found.program,
            })
        });
        listed.collect()
    }

    /// The destinations of plain connections by the policy to which these lists belong.
    ///
    /// # Errors
    /// When a list has no number: without one, any program would be permitted.
    fn destinations_of(&self, policy: &Policy) -> Result<Vec<Destination>, ProgramsError> {
        let numbered = policy.plain_destinations().map(|(server, programs)| {
            let Some(list) = programs.listed() else {
                return Ok((server, None));
            };
            let number = self.lists.get(list);
            let number = number.ok_or(ProgramsError::NotInForce(server))?;
            Ok((server, Some(*number)))
        });
        numbered.collect()
    }

    /// Makes the kernel authenticate plain connections to these destinations, by these lists.
    fn put(&self, tickets: &Tickets) -> Result<(), ProgramsError> {
        if let Some(listing) = tickets.listing() {
            let outcome = listing.add(&self.wanted());
            outcome.map_err(ProgramsError::Listing)?;
        }
        let destinations = self.destinations.iter().copied();
        let outcome = tickets.set_destinations(destinations);
        outcome.map_err(ProgramsError::Destinations)
    }

    /// Removes all programs from the kernel that are not wanted. If that fails, their files stay open,
    /// because the kernel still lists them.
    fn retain(&mut self, listing: &Listing, former: Self) {
        match listing.retain(&self.wanted()) {
            Ok(()) => self.kept.clear(),
            Err(error) => {
                tracing::error!(%error, "cannot take programs off the list: they still count as \
                    listed");
                self.kept.extend(former.programs.into_values());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(paths: &[&str]) -> List {
        Arc::new(paths.iter().map(|path| (*path).to_owned()).collect())
    }

    #[test]
    fn a_list_keeps_its_number_and_no_other_gets_it() {
        let (curl, both) = (list(&["/curl"]), list(&["/curl", "/mbsync"]));
        let mut state = State::default();
        state.take_lists([curl.clone()].into()).unwrap();
        let number = state.lists[&curl];
        state
            .take_lists([curl.clone(), both.clone()].into())
            .unwrap();
        assert_eq!(state.lists[&curl], number);
        assert_ne!(state.lists[&both], number);
        state.take_lists([both].into()).unwrap();
        state.take_lists([curl.clone()].into()).unwrap();
        assert_eq!(state.lists[&curl].get(), 3);
    }

    #[test]
    fn lists_for_which_there_is_no_room_are_refused() {
        let many = |count: usize| -> HashSet<List> {
            (0..count)
                .map(|number| list(&[&format!("/{number}")]))
                .collect()
        };
        let mut state = State::default();
        state.take_lists(many(LISTED)).unwrap();
        let refused = state.take_lists(many(LISTED + 1)).unwrap_err();
        assert!(
            matches!(refused, ProgramsError::TooMany(count) if count == LISTED + 1),
            "{refused}"
        );
    }

    /// A policy with a service of this host at port 119, for these `programs`.
    fn policy(programs: &str) -> Policy {
        let text = format!(
            "host laptop {{ address 10.77.0.1; key \"ssh-ed25519 \
             AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu\"; }}
             users news {{ member alice; }}
             client news {{ users news; service news at laptop port 119; programs {programs}; }}"
        );
        let name = "news.policy".to_owned();
        usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap()
    }

    #[test]
    fn a_list_without_a_number_is_refused() {
        let server = SocketAddr::from(([10, 77, 0, 1], 119));
        let listed = policy("\"/usr/bin/slrn\"");
        let mut state = State::default();
        let refused = state.destinations_of(&listed).unwrap_err();
        assert!(
            matches!(refused, ProgramsError::NotInForce(found) if found == server),
            "{refused}"
        );
        state.take_lists([list(&["/usr/bin/slrn"])].into()).unwrap();
        let numbered = state.destinations_of(&listed).unwrap();
        assert_eq!(numbered, [(server, Some(NonZeroU32::MIN))]);
        let any = State::default().destinations_of(&policy("any")).unwrap();
        assert_eq!(any, [(server, None)]);
    }

    #[test]
    fn nobody_is_on_a_list_whose_programs_were_not_found() {
        let programs = ListedPrograms::default();
        assert!(programs.permits(&Programs::Asking, None));
        assert!(programs.permits(&Programs::Any, None));
        assert!(!programs.permits(&Programs::Listed(list(&["/curl"])), None));
    }
}
