//! What the commands warn of: what is allowed, or works on other hosts, and is probably not meant.

use usher_local::applied::Applied;
use usher_policy::{Clause, PolicyWarning, parse_with_places};

/// A warning.
#[derive(Debug)]
pub struct Warning {
    /// What of the policy it is about, where that is one thing and the text does not say its place.
    clause: Option<Clause>,
    text: String,
}

impl Warning {
    /// A warning of what the policy says there.
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
            clause: warning.clause(),
            text: warning.to_string(),
        }
    }
}

/// The warnings, each after the place of what it is about.
pub fn with_places(warnings: Vec<Warning>, applied: &Applied) -> Vec<String> {
    let sources = applied.policy_sources();
    let some_are_about_the_policy = warnings.iter().any(|warning| warning.clause.is_some());
    // Read again only for these: most policies have no warnings, and nobody else asks for places.
    let places = some_are_about_the_policy
        .then(|| parse_with_places(&sources, &applied.known_groups()).ok())
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
