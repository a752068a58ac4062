//! The reasons why a connection is refused, and the lines that would have to change.

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};
use usher_language::{Mistake, joined, mistakes};
use usher_policy::protection::{IkeAlgorithm, Kind};
use usher_policy::{Clause, Moment, Name, Objection as OfPolicy, may_be_user};

use crate::network::{FormerKey, HostPolicy};
use crate::question::Question;

/// One reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objection {
    /// The host whose policy or users would have to change.
    pub host: HostName,
    /// The reason.
    pub reason: Reason,
    /// The clauses that would have to change there; empty if one would have to be added.
    pub clauses: Vec<Clause>,
}

mistakes! {
    /// A reason against a connection.
    ///
    /// Displays as an explanation; [`Reason::remedy`] returns what to do.
    #[derive(Serialize)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    pub enum Reason {
        /// The client has no `host` block with the server's key, or the server none with the client's.
        HostUnknown { host: HostName, other: HostName }
            => "{host} does not know the host {other}: no `host` block has its key";
            "make {other} known on {host}: `usher host add {other} ...`";
        /// A host's key for another differs from the other's own.
        KeyDiffers { host: HostName, other: HostName }
            => "the key that {host} has for {other} is not the one that {other} has for itself";
            "compare with /etc/usher/host_key.pub on {other}, and correct `host {other}` on {host}";
        /// No `client` block names the service.
        NoClientBlock { host: HostName, service: ServiceName, server: HostName }
            => "no `client` block of {host} names {service} at {server}";
            "add `service {service} at {server} port PORT;` to a `client` block on {host}";
        /// The `client` block does not name the user.
        UserNotInClient { host: HostName, client: Name, user: UserName }
            => "`client {client}` of {host} does not permit {user}"; "{}", admit(user, host);
        /// The server has no such service.
        NoService { host: HostName, service: ServiceName }
            => "{host} offers no service {service}";
            "add a block `service {service} {{ ... }}` on {host}";
        /// The service does not admit the user.
        UserNotAdmitted { host: HostName, service: ServiceName, user: UserName }
            => "`service {service}` of {host} does not admit {user}"; "{}", admit(user, host);
        /// The user is root, an account of Usher or the service's own: no policy makes it a user.
        NeverAdmitted { host: HostName, service: ServiceName, user: UserName }
            => "`service {service}` of {host} can never admit {user}: root, Usher's accounts and the \
                service's own are no users of it";
            "";
        /// The user is a guest in the sets that a block names, `client NAME` or `service NAME`, and
        /// the latest time has passed.
        GuestOver { host: HostName, block: String, user: UserName, until: Moment }
            => "{user} was a guest of `{block}` of {host}, and that is over since {until}";
            "write a later time for the guest {user} on {host}";
        /// The service admits no user from the client's host.
        HostNotAdmitted { host: HostName, service: ServiceName, client: HostName }
            => "`service {service}` of {host} admits no users from {client}";
            "add {client} to its `hosts` on {host}";
        /// The client expects the service at another port.
        PortDiffers { host: HostName, port: u16, offered: u16 }
            => "{host} expects the service at port {port}, but it is offered at port {offered}";
            "write `port {offered}` in the `client` block on {host}";
        /// The question names another port.
        OtherPort { host: HostName, asked: u16, port: u16 }
            => "it is not at port {asked}: {host} says port {port}"; "ask for port {port}";
        /// The client looks for the control channel at another port; `block` is its name for the
        /// other host.
        ControlDiffers { host: HostName, other: HostName, block: HostName, port: u16, own: u16 }
            => "{host} looks for the control channel of {other} at port {port}, but it is at port {own}";
            "write `control {own};` in `host {block}` on {host}";
        /// No pair of addresses fits both. `host` is the one whose policy would probably have to
        /// change, and `block` its name for the other.
        NoCommonAddress { client: HostName, server: HostName, host: HostName, block: HostName }
            => "{client} and {server} agree on no addresses that a connection between them can have";
            "write the addresses that the two hosts have in `host {host}` and `host {block}` on {host}";
        /// No program of the client's host has its connections with the service protected as the
        /// service demands. `server` is the client's name for the service's host.
        Unprotected { host: HostName, service: ServiceName, server: HostName, port: u16, demanded: Kind }
            => "{service} demands {demanded} by IPsec, and {host} protects no program's connections with \
                {server} at port {port} by it";
            "write `protection {demanded};` in the `client` block on {host} that names {service} at \
             {server}";
        /// The client protects its connections with the service, and the server negotiates no SAs of
        /// that class.
        NoSas { host: HostName, service: ServiceName, client: HostName, wanted: Kind }
            => "{client} has its connections with {service} protected by {wanted} of IPsec, and {host} \
                negotiates no SAs for it";
            "write `protection {wanted};` in `service {service}` on {host}";
        /// A connection needs a class of SAs, and the other host, which has no Usher, has another class only,
        /// by its block.
        OnlyClass { host: HostName, of: HostName, wanted: Kind, only: Kind }
            => "IPsec must protect connections with {of} by {wanted}, and `host {of}` of {host} says \
                `unlabelled {only}`, the only class that it has SAs of";
            "write `unlabelled {wanted};` there if {of} can have that class, or remove `unlabelled` if its IPsec \
             knows security labels";
        /// A connection needs IPsec, and a host's policy has no key for it: `of` is the host itself or
        /// the other one, by its name there.
        NoIkeKey { host: HostName, of: HostName, other: HostName }
            => "IPsec must protect connections with {other}, and `host {of}` of {host} has no \
                `ike-key`: no SAs are negotiated";
            "write the key of its /etc/usher/ike/key.pub as `ike-key` into `host {of}` on {host}";
        /// A connection needs IPsec, and a host's key for the other is none that the other has.
        IkeKeyDiffers { host: HostName, other: HostName, block: HostName }
            => "IPsec must protect connections with {other}, and the `ike-key` that {host} has for \
                {other} is not the one that {other} has for itself";
            "compare with /etc/usher/ike/key.pub on {other}, for ECDSA with ecdsa_key.pub beside it, and correct \
             `host {block}` on {host}";
        /// A connection needs IPsec, and no key that a host has for itself is of the algorithm of one that it has
        /// for the other, by its name there.
        NoCommonIkeAlgorithm { host: HostName, other: HostName }
            => "IPsec must protect connections with {other}, and on {host} the `ike-key`s of {host} and of {other} \
                are of different algorithms: no SAs are negotiated";
            "make a key of {other}'s algorithm on {host}, and add it, after a comma, to the `ike-key` of {host} on \
             both hosts (docs/protection.md, Keys)";
        /// A connection needs IPsec, and two hosts choose different algorithms of keys: one lacks a key that the
        /// other has.
        IkeAlgorithmDiffers { host: HostName, used: IkeAlgorithm, other: HostName, expected: IkeAlgorithm }
            => "IPsec must protect connections with {other}, and {host} has {used} keys for it, where {other} has \
                {expected} keys for {host}";
            "write the same `ike-key` statements for {host} and {other} on both";
        /// A connection needs IPsec, and a host expects the other's key under another name.
        IkeNameDiffers { host: HostName, other: HostName, block: HostName }
            => "IPsec must protect connections with {other}, and {host} calls it `{block}`: its IKE \
                daemon authenticates {other} by that name only";
            "rename `host {block}` to `host {other}` on {host}";
        /// The user is disabled.
        Disabled { host: HostName, user: UserName }
            => "{user} is disabled on {host}"; "`usher user enable {user}`";
        /// The server knows no valid key of the user for this service; the `former` ones were valid
        /// once.
        NoKey { host: HostName, user: UserName, keys: Option<Name>, former: Vec<FormerKey> }
            => "{host} has no good public key of {user}{}{}", of_key(" for ", keys), faults(former);
            "`usher user add {user} --public-key FILE{}`", of_key(" --key ", keys);
    }
}

/// The remedy; empty for a user whom no `users` block accepts.
fn admit(user: &UserName, host: &HostName) -> String {
    if !may_be_user(user) {
        return String::new();
    }
    format!("add {user} to one of the `users` blocks that it names on {host}, or name another one")
}

impl Objection {
    /// The objection of a host's policy to a connection with another host, which it calls `other`.
    pub(crate) fn of_policy(
        policy: &HostPolicy,
        question: &Question,
        other: &HostName,
        objection: OfPolicy<'_>,
    ) -> Self {
        let (host, other) = (policy.name.clone(), other.clone());
        let (user, service) = (question.user.clone(), question.service.clone());
        let clauses = objection.clause().into_iter().collect();
        let reason = match objection {
            OfPolicy::UnknownHost => Reason::HostUnknown { host, other },
            OfPolicy::NoClientEntry => Reason::NoClientBlock {
                host,
                service,
                server: other,
            },
            OfPolicy::NotInClient(client) => Reason::UserNotInClient {
                host,
                client: client.name.clone(),
                user,
            },
            OfPolicy::NoService => Reason::NoService { host, service },
            OfPolicy::NotAdmitted(_) => Reason::UserNotAdmitted {
                host,
                service,
                user,
            },
            OfPolicy::NeverAdmitted(_) => Reason::NeverAdmitted {
                host,
                service,
                user,
            },
            OfPolicy::GuestOver(guest) => Reason::GuestOver {
                host,
                block: format!("{} {}", guest.named_by.0, guest.named_by.1),
                user,
                until: guest.until,
            },
            OfPolicy::HostNotAdmitted(_) => Reason::HostNotAdmitted {
                host,
                service,
                client: other,
            },
        };
        Self {
            host: policy.name.clone(),
            reason,
            clauses,
        }
    }
}

fn of_key(before: &str, keys: &Option<Name>) -> String {
    keys.as_ref()
        .map_or_else(String::new, |keys| format!("{before}{keys}"))
}

/// The faults of the existing keys.
fn faults(former: &[FormerKey]) -> String {
    match former {
        [] => String::new(),
        faults => format!(" ({})", joined(faults, ", ")),
    }
}

impl Reason {
    /// The remedy, if the connection is meant to be permitted; none if there is none.
    pub fn remedy(&self) -> Option<String> {
        Some(Mistake::remedy(self)).filter(|remedy| !remedy.is_empty())
    }
}
