//! A question to the analyser.

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};

/// The connection in question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Question {
    /// The connecting user.
    pub user: UserName,
    /// The user's host.
    pub client: HostName,
    /// The service.
    pub service: ServiceName,
    /// The service's host.
    pub server: HostName,
    /// The port; none: the service's own.
    pub port: Option<u16>,
}
