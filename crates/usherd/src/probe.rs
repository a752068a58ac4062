//! `usherd probe`: tries what this kernel can do, for `usher doctor`, which loads no programs itself.

use std::io::Write;

use usher_daemon::probe::Probe;
use usher_kernel::probe;

/// Tries the features of these names, or everything if none is given, and prints the results as JSON.
pub fn run(names: &[String]) -> std::io::Result<()> {
    let chosen = probe::ALL
        .iter()
        .filter(|one| names.is_empty() || names.iter().any(|name| name == one.name));
    let found: Vec<Probe> = chosen
        .map(|one| {
            let outcome = one.run();
            Probe {
                name: one.name.into(),
                works: outcome.is_ok(),
                required: one.required,
                detail: outcome.unwrap_or_else(|reason| reason),
                needed_for: one.needed_for.into(),
            }
        })
        .collect();
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&found)?)
}
