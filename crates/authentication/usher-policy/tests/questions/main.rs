//! The daemons' questions: every refusal beside its permitted twin.

mod addresses;
mod admission;
mod contents;

use usher_base::{HostName, ServiceName, UserName};
use usher_policy::{Policy, Program, ServedBy, Source, parse_with_groups};

const LAPTOP_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu";
const OTHER_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIC8E9DhH4uHVxzvVTyxZvnsMbYT8AtrwLX5f5zXbamr1";

fn source(name: &str, text: &str) -> Source {
    Source {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

/// 2026-01-01T00:00Z.
const NOW: u64 = 1_767_225_600;

const COMPLETE: &str = include_str!("../golden/complete.policy");

fn policy() -> Policy {
    policy_of(COMPLETE)
}

fn policy_of(text: &str) -> Policy {
    let complete = source("complete.policy", text);
    let accounts = ["root", "erin"].map(str::to_owned).into();
    let groups = [("staff".parse().expect("a group's name"), Ok(accounts))].into();
    parse_with_groups(&[complete], &groups).expect("a correct policy")
}

fn user(name: &str) -> UserName {
    name.parse().expect("a user name")
}

fn host(name: &str) -> HostName {
    name.parse().expect("a host name")
}

fn service(name: &str) -> ServiceName {
    name.parse().expect("a service name")
}

/// The program of a service that has one.
fn program<'p>(policy: &'p Policy, name: &str) -> &'p Program {
    match &policy.services[&service(name)].served_by {
        ServedBy::Program(program) => program,
        other => panic!("{name} is served by {other:?}"),
    }
}
