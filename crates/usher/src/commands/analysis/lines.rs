//! Places of clauses in hosts' policies.

use std::collections::BTreeMap;

use usher_base::HostName;
use usher_policy::{Clause, Place, Places, parse_with_places};

use super::hosts::Loaded;
use crate::failure::Failure;

/// The places of the clauses of some hosts.
pub struct Lines<'l>(BTreeMap<&'l HostName, Places<'l>>);

impl<'l> Lines<'l> {
    /// Reads the texts of these hosts again, with places.
    ///
    /// # Errors
    /// The mistakes of a policy, which has none by now.
    pub fn of(loaded: &'l Loaded, concerned: impl Fn(&HostName) -> bool) -> Result<Self, Failure> {
        let concerned = loaded.sources.iter().filter(|(host, _)| concerned(host));
        let places = concerned.map(|(host, (sources, groups))| {
            let parsed = parse_with_places(sources, groups);
            let (_, places) = parsed.map_err(|errors| Failure::Policy {
                errors,
                sources: sources.clone(),
            })?;
            Ok((host, places))
        });
        places.collect::<Result<_, Failure>>().map(Self)
    }

    /// The place of a clause; none for a default.
    pub fn place(&self, host: &HostName, clause: &Clause) -> Option<Place> {
        self.0.get(host)?.place(clause)
    }

    /// The place of a clause, or of the block that lacks it.
    pub fn nearest(&self, host: &HostName, clause: &Clause) -> Option<Place> {
        self.0.get(host)?.nearest(clause)
    }
}
