//! Reads the head of an HTTP request, and writes the response (RFC 9112). Only the request line and `Accept`
//! matter, so half a page of code replaces a crate: it decodes no escapes, trusts no length, reads no body.

/// The largest head, in bytes.
pub const LARGEST: usize = 8192;

/// The path that has metrics.
const PATH: &str = "/metrics";

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

impl Format {
    /// Its media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The reasons that a request gets no metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// Its head is larger than [`LARGEST`].
    TooLarge,
    /// It is no request of HTTP/1.
    Malformed,
    /// Its method is not GET.
    OtherMethod,
    /// Its path is not [`PATH`].
    OtherPath,
}

impl Mistake {
    /// The code and the reason of the status line.
    pub const fn status(self) -> &'static str {
        match self {
            Self::TooLarge => "431 Request Header Fields Too Large",
            Self::Malformed => "400 Bad Request",
            Self::OtherMethod => "405 Method Not Allowed",
            Self::OtherPath => "404 Not Found",
        }
    }

    /// The body of the answer: the mistake, and the remedy.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::TooLarge => {
                "the head of the request is longer than 8192 bytes: send fewer or shorter fields"
            }
            Self::Malformed => "this is no request of HTTP/1.0 or HTTP/1.1",
            Self::OtherMethod => "only GET is answered: the exporter changes nothing",
            Self::OtherPath => "the metrics are at /metrics",
        }
    }
}

/// Whether the bytes contain the empty line that ends a head.
pub fn is_whole(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|four| four == b"\r\n\r\n")
}

/// The format that a request asks for.
///
/// # Errors
/// [`Mistake`], for any bytes.
pub fn decode(bytes: &[u8]) -> Result<Format, Mistake> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end.filter(|end| end + 4 <= LARGEST) else {
        return Err(Mistake::TooLarge);
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| Mistake::Malformed)?;
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.0" | "HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Mistake::Malformed);
    };
    if method != "GET" {
        return Err(Mistake::OtherMethod);
    }
    // A Prometheus may be configured to send parameters.
    let path = target.split('?').next().unwrap_or_default();
    if path != PATH {
        return Err(Mistake::OtherPath);
    }
    let fields = lines.filter_map(|line| line.split_once(':'));
    let mut accepted = fields.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let wants = |text: &str| text.contains("application/openmetrics-text");
    Ok(if accepted.any(|(_, value)| wants(value)) {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    })
}

/// A whole response. The connection is closed after it.
pub fn response(status: &str, content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_is_taken_in_either_format() {
        let asked = |rest: &str| decode(format!("GET {rest}\r\n\r\n").as_bytes());
        assert_eq!(asked("/metrics HTTP/1.1"), Ok(Format::Prometheus));
        assert_eq!(asked("/metrics?a=b HTTP/1.0"), Ok(Format::Prometheus));
        let accept = "ACCEPT: text/plain;q=0.5,application/openmetrics-text;version=1.0.0;q=0.75";
        assert_eq!(
            asked(&format!("/metrics HTTP/1.1\r\nHost: a\r\n{accept}")),
            Ok(Format::OpenMetrics)
        );
    }

    #[test]
    fn other_requests_are_mistakes() {
        for (text, mistake) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", Mistake::OtherMethod),
            ("GET / HTTP/1.1\r\n\r\n", Mistake::OtherPath),
            ("GET /metrics HTTP/2\r\n\r\n", Mistake::Malformed),
            ("GET /metrics HTTP/1.1 x\r\n\r\n", Mistake::Malformed),
            ("\r\n\r\n", Mistake::Malformed),
            ("GET /metrics HTTP/1.1", Mistake::TooLarge),
        ] {
            assert_eq!(decode(text.as_bytes()), Err(mistake), "{text:?}");
        }
        assert_eq!(
            decode(b"GET /\xff HTTP/1.1\r\n\r\n"),
            Err(Mistake::Malformed)
        );
    }

    #[test]
    fn a_head_has_a_limit_and_up_to_it_is_taken() {
        let padded = |length: usize| {
            let begin = "GET /metrics HTTP/1.1\r\nX: ";
            let padding = "x".repeat(length - begin.len() - 4);
            decode(format!("{begin}{padding}\r\n\r\n").as_bytes())
        };
        assert_eq!(padded(LARGEST), Ok(Format::Prometheus));
        assert_eq!(padded(LARGEST + 1), Err(Mistake::TooLarge));
    }
}
