//! YCSB's property files (`workloads/workloada` ..): the core workload's properties that a key-value store can honour.

use super::mix::{Mix, Scan, Spread};
use super::request::Kind;

/// What a property file asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    pub mix: Mix,
    /// `recordcount`.
    pub records: Option<u64>,
    /// Properties that were read and have no meaning here.
    pub ignored: Vec<String>,
}

/// Properties of upstream that change nothing for us: names of classes and tables, and counts that `--duration`
/// replaces.
const WITHOUT_MEANING: [&str; 8] = [
    "workload",
    "table",
    "operationcount",
    "readallfields",
    "writeallfields",
    "insertorder",
    "maxexecutiontime",
    "scanlengthdistribution",
];

/// Reads a property file; `name` is its path, for reports. The error says which line is wrong.
pub fn parse(name: &str, text: &str) -> Result<Properties, String> {
    let mut mix = Mix { name: name.to_owned(), ..Mix::named("ycsb-a").expect("ycsb-a is one of ours") };
    let mut shares =
        [(Kind::Get, 0.95), (Kind::Put, 0.05), (Kind::Insert, 0.0), (Kind::Range, 0.0), (Kind::ReadModifyWrite, 0.0)];
    let (mut fields, mut field_bytes) = (10u32, 100u32);
    let (mut records, mut ignored) = (None, Vec::new());
    mix.spread = Spread::Uniform;
    mix.scan = Scan::Limit { max: 1_000 };
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let wrong = |what: &str| format!("{name}:{}: {what}", number + 1);
        let (key, value) = line.split_once(['=', ':']).ok_or_else(|| wrong("a property is KEY=VALUE"))?;
        let (key, value) = (key.trim(), value.trim());
        let integer = || value.parse::<u32>().map_err(|_| wrong("a whole number is wanted"));
        let mut share = |kind| {
            let parsed: f64 = value.parse().map_err(|_| wrong("a share between 0 and 1 is wanted"))?;
            if !(0.0..=1.0).contains(&parsed) {
                return Err(wrong("a share between 0 and 1 is wanted"));
            }
            shares.iter_mut().filter(|(k, _)| *k == kind).for_each(|(_, share)| *share = parsed);
            Ok(())
        };
        match key {
            "readproportion" => share(Kind::Get)?,
            "updateproportion" => share(Kind::Put)?,
            "insertproportion" => share(Kind::Insert)?,
            "scanproportion" => share(Kind::Range)?,
            "readmodifywriteproportion" => share(Kind::ReadModifyWrite)?,
            "recordcount" => records = Some(value.parse().map_err(|_| wrong("a whole number is wanted"))?),
            "fieldcount" => fields = integer()?,
            "fieldlength" => field_bytes = integer()?,
            "maxscanlength" => mix.scan = Scan::Limit { max: integer()?.max(1) },
            "requestdistribution" => {
                mix.spread = match value {
                    "uniform" => Spread::Uniform,
                    "zipfian" => Spread::Zipfian,
                    "latest" => Spread::Latest,
                    _ => return Err(wrong("the distributions are uniform, zipfian and latest")),
                };
            }
            other if WITHOUT_MEANING.contains(&other) => {}
            other => ignored.push(other.to_owned()),
        }
    }
    mix.weights = shares.iter().map(|&(kind, share)| (kind, (share * 10_000.0_f64).round() as u32)).collect();
    mix.weights.retain(|&(_, weight)| weight > 0);
    if mix.weights.is_empty() {
        return Err(format!("{name}: all proportions are 0"));
    }
    mix.value_bytes = fields.saturating_mul(field_bytes);
    Ok(Properties { mix, records, ignored })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD_E: &str = "\
# Yahoo! Cloud System Benchmark
recordcount=1000
operationcount=1000
workload=site.ycsb.workloads.CoreWorkload

readallfields=true

readproportion=0
updateproportion=0
scanproportion=0.95
insertproportion=0.05

requestdistribution=zipfian

maxscanlength=100

scanlengthdistribution=uniform
";

    #[test]
    fn upstreams_file_for_e_is_our_ycsb_e() {
        let properties = parse("workloade", WORKLOAD_E).unwrap();
        let ours = Mix::named("ycsb-e").unwrap();
        assert_eq!(properties.records, Some(1_000));
        assert_eq!(properties.ignored, Vec::<String>::new());
        let mix = properties.mix;
        assert_eq!((mix.spread, mix.scan, mix.value_bytes, mix.fresh_inserts), (ours.spread, ours.scan, 1_000, true));
        let shares =
            |mix: &Mix, kind| (0..mix.total()).filter(|&d| mix.pick(d) == kind).count() as u64 * 100 / mix.total();
        for kind in Kind::ALL {
            assert_eq!(shares(&mix, kind), shares(&ours, kind), "{}", kind.name());
        }
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(parse("w", "readproportion=2").unwrap_err(), "w:1: a share between 0 and 1 is wanted");
        assert_eq!(parse("w", "#x\nnonsense").unwrap_err(), "w:2: a property is KEY=VALUE");
        assert!(parse("w", "readproportion=0\nupdateproportion=0").is_err());
        assert_eq!(parse("w", "hotspotdatafraction=0.2").unwrap().ignored, ["hotspotdatafraction"]);
    }
}
