//! Asking a calendar server.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;

use usher::{ConnectError, HostName, ServiceName};

use crate::protocol::{self, Answer, Code, MAXIMUM_ANSWER, Request};

/// Reasons for a missing or unusable answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no connection.
    #[error("cannot connect to {service} on {host}: {source}")]
    Connect {
        /// As asked for.
        host: HostName,
        /// As asked for.
        service: ServiceName,
        /// Why.
        source: ConnectError,
    },
    /// The connection failed.
    #[error("the connection to the server: {0}")]
    Connection(#[from] io::Error),
    /// The server ended the connection instead of answering.
    #[error("the server ended the connection")]
    Closed,
    /// The server refused.
    #[error("the server refused: {text}")]
    Refused {
        /// For programs.
        code: Code,
        /// For people.
        text: String,
    },
    /// The server answered another question.
    #[error("the server's answer is to another question; are client and server of one version?")]
    Mismatch,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client<S: Read + Write> {
    connection: BufReader<S>,
}

impl Client<TcpStream> {
    /// Connects as the user this process runs as.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(host: &HostName, service: &ServiceName) -> Result<Self, ClientError> {
        usher::connect_by_user(host, service)
            .map(Self::new)
            .map_err(|source| ClientError::Connect {
                host: host.clone(),
                service: service.clone(),
                source,
            })
    }
}

impl<S: Read + Write> Client<S> {
    /// Speaks over an existing connection.
    #[must_use]
    pub fn new(connection: S) -> Self {
        Self {
            connection: BufReader::new(connection),
        }
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`]; after [`ClientError::Refused`] the connection can continue.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        protocol::write(self.connection.get_mut(), request)?;
        match protocol::read(&mut self.connection, MAXIMUM_ANSWER)? {
            None => Err(ClientError::Closed),
            Some(Answer::Refused { code, text }) => Err(ClientError::Refused { code, text }),
            Some(answer) => Ok(answer),
        }
    }
}
