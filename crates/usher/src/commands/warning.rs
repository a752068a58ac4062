//! Warnings of the commands: about what is allowed, or works on other hosts, but is probably a mistake.

use usher_local::applied::Applied;
use usher_policy::{BlockKind, Clause, PolicyWarning, Service, parse_with_places};

/// A warning.
#[derive(Debug)]
pub struct Warning {
    /// The part of the policy that the warning is about; none if there are several, or the text names the
    /// place.
    clause: Option<Clause>,
    text: String,
}

impl Warning {
    /// A warning about a part of the policy.
    pub fn about(clause: Clause, text: String) -> Self {
        Self {
            clause: Some(clause),
            text,
        }
    }
}

impl From<String> for Warning {
    fn from(text: String) -> Self {
        Self { clause: None, text }
    }
}

impl From<PolicyWarning> for Warning {
    fn from(warning: PolicyWarning) -> Self {
        Self {
            text: format!("{warning}; {}", warning.remedy),
            clause: warning.clause,
        }
    }
}

/// The warnings as text, each after its place in the policy.
pub fn with_places(warnings: Vec<Warning>, applied: &Applied) -> Vec<String> {
    let some_are_about_the_policy = warnings.iter().any(|warning| warning.clause.is_some());
    // Most policies have no warnings, so the places are only read when they are needed.
    let places = some_are_about_the_policy
        .then(|| parse_with_places(&applied.sources, &applied.known_groups()).ok())
        .flatten()
        .map(|(_, places)| places);
    let placed = |Warning { clause, text }| {
        let place = clause.and_then(|clause| places.as_ref()?.nearest(&clause));
        match place {
            Some(place) => format!("{place}: {text}"),
            None => text,
        }
    };
    warnings.into_iter().map(placed).collect()
}

/// The place of a statement of a service.
pub fn said(service: &Service, keyword: &str) -> Clause {
    Clause::statement(BlockKind::Service, &service.name, keyword)
}
