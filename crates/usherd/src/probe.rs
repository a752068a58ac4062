//! `usherd probe`: tests which features this kernel has, for `usher doctor`, which loads no programs itself.

use std::io::Write;

use usher_daemon::probe::Probe as Found;
use usher_ipsec::{Ipsec, probe_esp};
use usher_kernel::probe::{self, Probe};
use usher_mac::Framework;
use usher_system::namespace::in_new_network;

/// Probes of the features that protection needs.
static PROTECTION: &[Probe] = &[
    Probe::new(
        "protection",
        true,
        "marking the sockets of governed programs, and dropping packets without protection",
        || Ipsec::probe().map(|()| "the programs that mark sockets and check packets load".into()),
    ),
    Probe::new(
        "IPsec",
        true,
        "protecting packets: what must be protected is dropped otherwise",
        || {
            in_new_network(probe_esp)??;
            Ok("ESP with AES-GCM works for IPv4 and IPv6".into())
        },
    ),
    Probe::new(
        "listing sockets",
        false,
        "governing sockets that are older than the policy before they are used again",
        || Ipsec::probe_listing().map(|()| "the program that lists sockets loads".into()),
    ),
    Probe::new(
        "services in the clear",
        false,
        "dropping plaintext of protected services while somebody has removed entries of the SPD (Linux \
         6.6)",
        || Ipsec::probe_services().map(|()| "the netfilter programs for it load".into()),
    ),
];

/// Probes of the features that modules of mandatory access control need.
static MODULES: &[Probe] = &[Probe::new(
    "MAC framework",
    true,
    "loading modules of mandatory access control",
    || {
        Framework::probe()?;
        Ok("the dispatchers and a module load".into())
    },
)];

/// Tests the features of these names, or all features if no name is given, and prints the results as JSON.
pub fn run(names: &[String]) -> std::io::Result<()> {
    let chosen = probe::ALL
        .iter()
        .chain(PROTECTION)
        .chain(MODULES)
        .filter(|one| names.is_empty() || names.iter().any(|name| name == one.name));
    let found: Vec<Found> = chosen
        .map(|one| {
            let outcome = one.run();
            Found {
                name: one.name.into(),
                works: outcome.is_ok(),
                required: one.required,
                detail: outcome.unwrap_or_else(|lack| lack.to_string()),
                needed_for: one.needed_for.into(),
            }
        })
        .collect();
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&found)?)
}
