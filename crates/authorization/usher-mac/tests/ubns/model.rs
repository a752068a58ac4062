//! The decisions as docs/mac.md has them.

use std::collections::BTreeMap;

use usher_mac::ubns::{DestinationRange, ServiceSettings};

use crate::cases::{Case, Element};
use crate::{EACCES, EPERM, SETUID, SYS_ADMIN};

pub fn refused_unless(permitted: bool) -> i32 {
    if permitted { 0 } else { EACCES }
}

/// With the services of the policy, by name.
pub struct Model<'a> {
    pub services: BTreeMap<&'a str, &'a ServiceSettings>,
    pub case: &'a Case,
}

impl Model<'_> {
    pub fn has(&self, capability: u64) -> bool {
        self.case.capabilities & capability != 0
    }

    pub fn binds(&self) -> i32 {
        let socket = &self.case.socket;
        let is_named = socket.named == 2 || socket.named == 1 && socket.family == 2;
        let of_port = |service: &&&ServiceSettings| is_named && service.port == socket.port;
        let service = self.services.values().find(of_port);
        let is_tcp = socket.kind == 1 && socket.protocol != 132;
        let is_ours = |service: &ServiceSettings| service.account == Some(self.case.uid);
        refused_unless(
            !is_tcp || self.case.uid == 0 || service.is_none_or(|service| is_ours(service)),
        )
    }

    /// Whether a process of the service is held to its destinations.
    fn holds(&self, service: &ServiceSettings) -> bool {
        service.connect.is_some() && service.account != Some(self.case.uid)
    }

    /// Whether the process may reach an address.
    pub fn reaches(&self) -> bool {
        let Some(own) = self.case.own.service() else {
            return true;
        };
        let socket = &self.case.socket;
        let Some(service) = self.services.get(own) else {
            return false;
        };
        let connect = service.connect.as_ref();
        let Some(connect) = connect.filter(|_| self.holds(service)) else {
            return true;
        };
        let address = socket.address.to_canonical();
        let has = |to: &DestinationRange| {
            to.first.is_ipv4() == address.is_ipv4()
                && (to.first..=to.last).contains(&address)
                && (to.ports.0..=to.ports.1).contains(&socket.port)
        };
        !address.is_unspecified() && connect.iter().any(has)
    }

    pub fn connects(&self) -> i32 {
        refused_unless(self.case.socket.named != 2 || self.reaches())
    }

    pub fn sends(&self) -> i32 {
        let socket = &self.case.socket;
        let is_named = socket.named == 2 || socket.named == 1 && socket.family == 2;
        refused_unless(!is_named || self.reaches())
    }

    pub fn makes_socket(&self) -> i32 {
        let Some(own) = self.case.own.service() else {
            return 0;
        };
        let socket = &self.case.socket;
        let service = self.services.get(own);
        let is_free = service.is_some_and(|service| !self.holds(service));
        let is_known =
            [(1, 0), (1, 6), (1, 262), (2, 0), (2, 17)].contains(&(socket.kind, socket.protocol));
        refused_unless(is_free || is_known || !socket.is_internet() && socket.family != 33)
    }

    pub fn uses(&self, object: &Element) -> bool {
        let owner = object.service();
        owner.is_none() || owner == self.case.own.service() || self.has(SYS_ADMIN)
    }

    pub fn traces(&self, is_child: bool) -> i32 {
        let are_one = self.case.own.service() == self.case.object.service();
        let reads_only = !is_child && self.case.trace_mode & 2 == 0;
        refused_unless(are_one || reads_only || !is_child && self.has(SYS_ADMIN))
    }

    pub fn becomes_service(&self) -> i32 {
        let Case { uid, euid, .. } = *self.case;
        let Some(wanted) = self.case.last.service() else {
            return EPERM;
        };
        let account = self
            .services
            .get(wanted)
            .and_then(|service| service.account);
        let may = euid == 0 || account == Some(uid);
        if may && self.has(SETUID) && self.case.object == Element::Nothing {
            0
        } else {
            EPERM
        }
    }

    pub fn of_program(&self) -> Element {
        let uid = self.case.uid;
        let of_account = self
            .services
            .values()
            .filter(|service| service.account == Some(uid));
        let names: Vec<_> = of_account.map(|service| service.name.clone()).collect();
        match (&self.case.last, names.as_slice()) {
            (Element::Nothing, [name]) => Element::Name(name.clone()),
            (former, _) => former.clone(),
        }
    }

    pub fn of_file(&self) -> Option<Element> {
        match &self.case.object {
            Element::Unknown => None,
            Element::Nothing => Some(Element::Name("-".into())),
            name => Some(name.clone()),
        }
    }
}
