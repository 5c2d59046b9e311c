//! In which format a scraper wants the metrics (`Accept`, RFC 9110 12.5.1).

use axum::http::{HeaderMap, header};

use crate::metrics::Format;

/// The format that the request asks for most. One that asks for neither, or accepts neither, gets text: a person with a
/// browser, a program that takes anything.
pub(super) fn format(headers: &HeaderMap) -> Format {
    let accepted = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<Range> = accepted.flat_map(|value| value.split(',')).filter_map(Range::parse).collect();
    let quality = |kind, subtype, version| {
        let fits = ranges.iter().filter(|range| range.takes(kind, subtype, version));
        // The most specific range that fits says it.
        fits.max_by_key(|range| range.precision()).map_or(0, |range| range.quality)
    };
    let open_metrics = quality("application", "openmetrics-text", "1.0.0");
    // Whoever takes anything has not asked for it.
    let asked = ranges.iter().any(|range| range.subtype == "openmetrics-text");
    match asked && open_metrics > 0 && open_metrics >= quality("text", "plain", "0.0.4") {
        true => Format::OpenMetrics,
        false => Format::Text,
    }
}

/// One media range.
#[derive(Debug)]
struct Range {
    kind: String,
    subtype: String,
    version: Option<String>,
    /// In thousandths.
    quality: u32,
}

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let mut range =
            Range { kind: kind.to_lowercase(), subtype: subtype.to_lowercase(), version: None, quality: 1_000 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim().to_lowercase().as_str() {
                "version" => range.version = Some(value.to_owned()),
                "q" => range.quality = value.parse().map_or(0, |q: f32| (q.clamp(0.0, 1.0) * 1_000.0) as u32),
                _ => {}
            }
        }
        Some(range)
    }

    fn takes(&self, kind: &str, subtype: &str, version: &str) -> bool {
        [(&self.kind, kind), (&self.subtype, subtype)].iter().all(|(range, offer)| *range == "*" || *range == offer)
            && self.version.as_deref().is_none_or(|asked| asked == version)
    }

    fn precision(&self) -> (bool, bool, bool) {
        (self.kind != "*", self.subtype != "*", self.version.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().expect("a header"));
        format(&headers)
    }

    #[test]
    fn open_metrics_is_for_those_who_ask_for_it() {
        // Prometheus 2.42, and 3.
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                            text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
        for accept in [
            prometheus_2,
            prometheus_3,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=1.0.0",
            "text/plain;q=0.5, application/openmetrics-text;q=0.5",
        ] {
            assert_eq!(accepted(accept), Format::OpenMetrics, "{accept}");
        }
    }

    #[test]
    fn everybody_else_gets_text() {
        assert_eq!(format(&HeaderMap::new()), Format::Text);
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/plain;version=0.0.4",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/json",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;version=2.0.0,text/plain;q=0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
            "application/openmetrics-text;q=0.3,text/plain;q=0.7",
            ";;;,/,q=,=",
        ] {
            assert_eq!(accepted(accept), Format::Text, "{accept}");
        }
    }
}
