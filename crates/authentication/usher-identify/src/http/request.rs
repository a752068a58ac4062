//! Makes the server's request from a client's: adapts the target, and removes headers that only proxies set.

use std::io;
use std::net::SocketAddr;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Uri, Version};
use usher::UserName;

use super::Passed;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Headers in which proxies tell servers who the user is, or where the client is. A server that reads another
/// header than the policy names would otherwise believe the client.
const CLAIMS: [&str; 15] = [
    "client-ip",
    "forwarded",
    "remote-email",
    "remote-groups",
    "remote-name",
    "remote-user",
    "true-client-ip",
    "x-authenticated-user",
    "x-authenticated-userid",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-proxy-user",
    "x-real-ip",
    "x-user",
    "x-ssl-client-s-dn",
];
const CLAIMED_GROUPS: [&str; 5] = [
    "x-auth-request-",
    "x-authentik-",
    "x-forwarded-",
    "x-remote-",
    "x-webauth-",
];

/// The user of a connection, as requests to the server name her.
pub struct User {
    header: HeaderName,
    name: HeaderValue,
    /// The value of `X-Forwarded-For`.
    address: HeaderValue,
    /// The client's endpoint.
    pub client: SocketAddr,
}

impl User {
    /// # Errors
    /// When the name cannot be the value of a header; every user's name can.
    pub fn new(header: HeaderName, name: &UserName, client: SocketAddr) -> io::Result<Self> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(io::Error::other);
        Ok(Self {
            header,
            name: value(name.as_ref())?,
            address: value(&client.ip().to_canonical().to_string())?,
            client,
        })
    }

    /// The request as the server gets it.
    ///
    /// # Errors
    /// The reason why the request is invalid or ambiguous.
    pub fn prepare(
        &self,
        request: Request<Incoming>,
        websocket: bool,
    ) -> Result<Request<Passed>, &'static str> {
        let (mut head, body) = request.into_parts();
        let is_http2 = head.version == Version::HTTP_2;
        let headers = &mut head.headers;
        let is_chunked = headers.contains_key(header::TRANSFER_ENCODING);
        let takes_trailers = headers
            .get(header::TE)
            .is_some_and(|value| value == "trailers");
        remove_hop_by_hop(headers);
        for name in [header::EXPECT, HTTP2_SETTINGS] {
            headers.remove(name);
        }
        let header = self.header.clone();
        remove_claims(headers, &header);
        headers.insert(X_FORWARDED_FOR, self.address.clone());
        headers.insert(&header, self.name.clone());
        if is_http2 {
            set_authority(&mut head.uri, headers)?;
            if takes_trailers {
                headers.insert(header::TE, HeaderValue::from_static("trailers"));
            }
        } else {
            to_origin_form(&mut head.uri, headers, head.version)?;
            head.version = Version::HTTP_11;
            // hyper would take a request without a length for one without a body.
            if is_chunked {
                let chunked = HeaderValue::from_static("chunked");
                headers.remove(header::CONTENT_LENGTH);
                headers.insert(header::TRANSFER_ENCODING, chunked);
            }
            let close = HeaderValue::from_static("close");
            headers.insert(header::CONNECTION, close);
            if websocket {
                set_websocket(headers);
            }
        }
        let clean = Box::new(move |mut frame: Frame<Bytes>| {
            if let Some(trailers) = frame.trailers_mut() {
                remove_claims(trailers, &header);
            }
            frame
        });
        Ok(Request::from_parts(head, body.map_frame(clean)))
    }
}

/// Whether a page of another site has made the user's browser send this request. Browsers tell by
/// `Sec-Fetch-Site` (W3C Fetch Metadata); those without it by an `Origin` (RFC 6454) other than this server's
/// host. Other programs send neither header.
pub fn is_of_another_site(uri: &Uri, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        return site != "same-origin" && site != "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return false;
    };
    let authority = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let host = authority.or_else(|| headers.get(header::HOST).map(HeaderValue::as_bytes));
    let after_scheme = origin.as_bytes().splitn(2, |&byte| byte == b'/').nth(1);
    let origin = after_scheme.and_then(|rest| rest.strip_prefix(b"/"));
    match (origin, host) {
        (Some(origin), Some(host)) => !origin.eq_ignore_ascii_case(host),
        _ => true,
    }
}

/// Whether a request asks for a WebSocket (RFC 6455), and for nothing else.
pub fn is_websocket(request: &Request<Incoming>) -> bool {
    let mut asked = request.headers().get_all(header::UPGRADE).iter();
    let websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && asked.next().is_some_and(websocket)
        && asked.next().is_none()
}

pub fn set_websocket(headers: &mut HeaderMap) {
    let (upgrade, websocket) = ("upgrade", "websocket");
    headers.insert(header::CONNECTION, HeaderValue::from_static(upgrade));
    headers.insert(header::UPGRADE, HeaderValue::from_static(websocket));
}

/// Removes headers that concern only one of the two connections (RFC 9110, section 7.6.1). Keeps the body's
/// length and the host even if `Connection` names them.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let connection = headers.get_all(header::CONNECTION).iter();
    let listed: Vec<HeaderName> = connection
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| ![header::CONTENT_LENGTH, header::HOST].contains(name))
        .collect();
    let known = [
        header::CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    for name in listed.into_iter().chain(known) {
        headers.remove(name);
    }
}

/// Removes headers that only a proxy may set, and that the client has set: who the user is, in `own` or in
/// another header that some server believes, and where the client is. Names that differ only in characters
/// other than letters and digits are the same: CGI and its successors make one variable of them (RFC 3875,
/// section 4.1.18).
fn remove_claims(headers: &mut HeaderMap, own: &HeaderName) {
    let own = plain(own);
    let is_claim = |name: &HeaderName| {
        let name = plain(name);
        name == own
            || CLAIMS.contains(&name.as_str())
            || CLAIMED_GROUPS.iter().any(|group| name.starts_with(group))
    };
    let found: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_claim(name))
        .cloned()
        .collect();
    for name in found {
        headers.remove(name);
    }
}

/// A header's name with a hyphen for each character that is no letter or digit.
fn plain(name: &HeaderName) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter
        } else {
            '-'
        }
    };
    name.as_str().chars().map(plain).collect()
}

/// Puts a request's target into origin form (RFC 9112, section 3.2.1): a host in the target goes to the Host
/// header. Afterwards there is exactly one Host header.
fn to_origin_form(
    uri: &mut Uri,
    headers: &mut HeaderMap,
    version: Version,
) -> Result<(), &'static str> {
    if let Some(authority) = uri.authority() {
        headers.insert(header::HOST, host_of(authority)?);
        let path = uri.path_and_query().cloned();
        *uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => Ok(()),
        (None, _) if version == Version::HTTP_10 => {
            headers.insert(header::HOST, HeaderValue::from_static("localhost"));
            Ok(())
        }
        _ => Err("the request does not have one Host header"),
    }
}

/// Puts the host of an HTTP/2 request into `:authority` only (RFC 9113, section 8.3.1).
fn set_authority(uri: &mut Uri, headers: &mut HeaderMap) -> Result<(), &'static str> {
    const WRONG: &str = "the request's target is wrong";
    let host = headers.remove(header::HOST);
    if let Some(authority) = uri.authority() {
        return host_of(authority).map(drop);
    }
    let host = host.ok_or("the request has no :authority")?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let built = Uri::builder()
        .scheme("http")
        .authority(host.as_bytes())
        .path_and_query(path);
    *uri = built.build().map_err(|_| WRONG)?;
    Ok(())
}

fn host_of(authority: &Authority) -> Result<HeaderValue, &'static str> {
    if authority.as_str().contains('@') {
        return Err("the request's target has a user's name");
    }
    HeaderValue::from_str(authority.as_str()).map_err(|_| "the request's target has no host")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |&(name, value): &(&str, &str)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_only_a_proxy_may_say_is_removed() {
        let mut sent = headers(&[
            ("X-Own", "bob"),
            ("x_own", "bob"),
            ("X.OWN", "bob"),
            ("X-Owner", "bob"),
            ("XOwn", "bob"),
            ("X-Remote-User", "bob"),
            ("Remote_User", "bob"),
            ("X-Forwarded-User", "bob"),
            ("X-Forwarded-For", "10.0.0.1"),
            ("Forwarded", "for=10.0.0.1"),
            ("X-Real-IP", "10.0.0.1"),
            ("User-Agent", "bob"),
        ]);
        remove_claims(&mut sent, &HeaderName::from_static("x-own"));
        let mut left: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["user-agent", "x-owner", "xown"]);
    }

    #[test]
    fn a_page_of_another_site_is_told_by_what_browsers_say() {
        let own = ("Host", "app:8080");
        for (said, is_other) in [
            (None, false),
            (Some(("Sec-Fetch-Site", "same-origin")), false),
            (Some(("Sec-Fetch-Site", "none")), false),
            (Some(("Sec-Fetch-Site", "same-site")), true),
            (Some(("Sec-Fetch-Site", "cross-site")), true),
            (Some(("Origin", "http://app:8080")), false),
            (Some(("Origin", "http://APP:8080")), false),
            (Some(("Origin", "http://app")), true),
            (Some(("Origin", "http://other:8080")), true),
            (Some(("Origin", "null")), true),
            (Some(("Origin", "app:8080")), true),
        ] {
            let lines: Vec<_> = [Some(own), said].into_iter().flatten().collect();
            let sent = headers(&lines);
            let uri = Uri::from_static("/a");
            assert_eq!(is_of_another_site(&uri, &sent), is_other, "{said:?}");
        }
        let sent = headers(&[("Origin", "http://app:8080")]);
        assert!(!is_of_another_site(
            &Uri::from_static("http://app:8080/a"),
            &sent
        ));
        assert!(is_of_another_site(&Uri::from_static("http://app/a"), &sent));
    }

    #[test]
    fn what_concerns_one_connection_is_removed() {
        let mut sent = headers(&[
            ("Connection", "close, X-Own"),
            ("Connection", "cookie, host, content-length"),
            ("Host", "app"),
            ("Content-Length", "1"),
            ("X-Own", "1"),
            ("Cookie", "a=b"),
            ("Keep-Alive", "timeout=5"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("Accept", "*/*"),
        ]);
        remove_hop_by_hop(&mut sent);
        let kept = [("Accept", "*/*"), ("Content-Length", "1"), ("Host", "app")];
        assert_eq!(sent, headers(&kept));
    }

    #[test]
    fn a_request_has_one_host() {
        let mut sent = headers(&[("Host", "other")]);
        let form = |target: &str, sent: &mut HeaderMap, version| {
            let mut uri: Uri = target.parse().unwrap();
            to_origin_form(&mut uri, sent, version).map(|()| uri.to_string())
        };
        let absolute = form("http://app:8080/a?b", &mut sent, Version::HTTP_11);
        assert_eq!(absolute.unwrap(), "/a?b");
        assert_eq!(sent[header::HOST], "app:8080");
        for same in ["/a?b", "*"] {
            assert_eq!(form(same, &mut sent, Version::HTTP_11).unwrap(), same);
        }
        assert!(form("http://bob@app/", &mut sent, Version::HTTP_11).is_err());

        let mut none = HeaderMap::new();
        assert!(form("/", &mut none, Version::HTTP_11).is_err());
        form("/", &mut none, Version::HTTP_10).unwrap();
        assert_eq!(none[header::HOST], "localhost");
        let mut two = headers(&[("Host", "one"), ("Host", "two")]);
        assert!(form("/", &mut two, Version::HTTP_11).is_err());
    }

    #[test]
    fn a_request_of_http2_has_its_host_in_the_target() {
        let authority = |target: &str, sent: &mut HeaderMap| {
            let mut uri: Uri = target.parse().unwrap();
            set_authority(&mut uri, sent).map(|()| uri.to_string())
        };
        let mut sent = headers(&[("Host", "other")]);
        assert_eq!(
            authority("http://app/a", &mut sent).unwrap(),
            "http://app/a"
        );
        assert!(sent.is_empty());
        let mut sent = headers(&[("Host", "app:1")]);
        assert_eq!(authority("/a", &mut sent).unwrap(), "http://app:1/a");
        assert!(authority("/a", &mut HeaderMap::new()).is_err());
    }
}
