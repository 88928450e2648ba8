//! A status for people: in lines of at most [`WIDTH`] columns.

use flexlog_protocol::api::{PositionInfo, ReplicaInfo, ReplicaStatus, ShardPlace, Status};
use flexlog_tree_config::topology::Topology;

use super::report::Report;

/// Columns that are used.
const WIDTH: usize = 100;

pub(super) fn of(report: &Report) -> Vec<String> {
    if report.is_one_process() { one_process(report) } else { tree(report) }
}

fn one_process(report: &Report) -> Vec<String> {
    let status = &report.asked;
    let mut lines = vec![
        format!("cluster    {} (flexlog {})", status.cluster, status.version),
        format!("directory  {}", status.directory),
        format!("up for     {:.0} s", status.uptime_micros as f64 / 1e6),
        format!("clients    {}", status.connections),
        format!("colors     {}", status.colors),
        format!("appends    {} since the start{}", status.appends, per_second(report.appends().1)),
    ];
    for shard in &status.shards {
        lines.push(format!(
            "shard {}    {}: epoch {}, view {}, log at {} (committed {}), {} sessions",
            shard.shard, shard.state, shard.epoch, shard.view, shard.last, shard.commit, shard.sessions
        ));
        for replica in &shard.replicas {
            lines.push(format!(
                "  replica {}  {}: {} of {} MiB used, {} records, {} staged, index {} KiB, opened {} times",
                replica.replica,
                replica.state,
                replica.used_bytes >> 20,
                replica.limit_bytes >> 20,
                replica.records,
                replica.staged,
                replica.index_bytes >> 10,
                replica.opened
            ));
            lines.push(format!("             {} at {}", replica.device, replica.path));
            if replica.ssd_files > 0 {
                lines.push(format!(
                    "             SSD: {} records in {} files, {} MiB",
                    replica.ssd_records,
                    replica.ssd_files,
                    replica.ssd_bytes >> 20
                ));
            }
            lines.extend(damage(replica).into_iter().map(|said| format!("             {said}")));
        }
    }
    lines
}

/// A line of the tree: who, where, and how.
struct Row {
    depth: usize,
    name: String,
    address: String,
    words: String,
}

fn tree(report: &Report) -> Vec<String> {
    let Status { cluster, version, colors, tree, process, .. } = &report.asked;
    let (appends, rate) = report.appends();
    let there = report.processes.iter().filter(|process| process.answer.is_ok()).count();
    let head = [
        ("cluster", format!("{cluster} (flexlog {version})")),
        ("processes", format!("{there} of {} answer", report.processes.len())),
        ("clients", count(report.connections(), "connection")),
        ("colors", if tree.stale.is_some() { "unknown".to_owned() } else { colors.to_string() }),
        ("appends", format!("{appends} since the start{}", per_second(rate))),
    ];
    let mut lines = Vec::new();
    for (name, words) in head {
        wrapped(&format!("{name:<11}"), &words, &mut lines);
    }
    if let Some(why) = &tree.stale {
        wrapped("metadata   ", &format!("away: {why}. What follows is as '{process}' knew it last"), &mut lines);
    }
    lines.push(String::new());
    let rows = rows(report);
    let names = rows.iter().map(|row| 2 * row.depth + row.name.chars().count()).max().unwrap_or_default();
    let addresses = rows.iter().map(|row| row.address.chars().count()).max().unwrap_or_default();
    for row in rows {
        let indent = 2 * row.depth;
        let before = match row.address.is_empty() {
            // A shard has no address; what there is to say of it needs the room.
            true => format!("{:indent$}{}  ", "", row.name),
            false => format!(
                "{:indent$}{:<name$}  {:<addresses$}  ",
                "",
                row.name,
                row.address,
                name = names.saturating_sub(indent)
            ),
        };
        wrapped(&before, &row.words, &mut lines);
    }
    let mut broken = report.broken_links().peekable();
    if broken.peek().is_some() {
        lines.push(String::new());
        lines.push("links that are down".to_owned());
    }
    for (from, to, link, down) in broken {
        let waiting = if link.queued_bytes > 0 { format!(", {} B wait", link.queued_bytes) } else { String::new() };
        wrapped(&format!("  {from} to {to}  "), &format!("{}: {down}{waiting}", link.address), &mut lines);
    }
    lines
}

fn rows(report: &Report) -> Vec<Row> {
    let tree = report.tree();
    let mut rows = Vec::new();
    // The tree may be deep, so those still to come are on a stack of our own.
    let mut next: Vec<(usize, &PositionInfo)> =
        tree.positions.iter().filter(|position| position.parent.is_none()).map(|root| (0, root)).collect();
    while let Some((depth, info)) = next.pop() {
        let words = position(report, info);
        let (_, address) = report.holder(info);
        rows.push(Row { depth, name: info.name.clone(), address, words });
        for (name, address, _, state) in report.standbys(info) {
            rows.push(Row { depth: depth + 1, name, address, words: format!("standby, {state}") });
        }
        for place in tree.shards.iter().filter(|place| place.leaf == info.position) {
            let name = format!("shard {}", place.shard);
            rows.push(Row { depth: depth + 1, name, address: String::new(), words: shard(report, place) });
            for info in &place.replicas {
                let name = format!("replica {}", info.replica);
                let words = replica(report, place, info);
                rows.push(Row { depth: depth + 2, name, address: info.address.clone(), words });
            }
        }
        let children = tree.positions.iter().filter(|child| child.parent == Some(info.position));
        next.extend(children.rev().map(|child| (depth + 1, child)));
    }
    rows
}

fn position(report: &Report, info: &PositionInfo) -> String {
    let (holder, _) = report.holder(info);
    if let Some(why) = report.away(&holder) {
        return match info.epoch.0 {
            0 => format!("away: {why}"),
            epoch => format!("away (epoch {epoch} was its last): {why}"),
        };
    }
    let Some((status, rate)) = report.position(info.position) else { return "not known".to_owned() };
    let mut words = report.state(info, status);
    if holder != info.name {
        words.push_str(&format!(", held by {holder}"));
    }
    if status.epoch.0 > 0 {
        let colors = count(status.colors, "color");
        words.push_str(&format!("; {colors}, {} granted{}", status.granted, per_second(rate)));
    }
    if status.under_way > 0 {
        words.push_str(&format!(", {} under way", count(status.under_way, "request")));
    }
    words
}

fn shard(report: &Report, place: &ShardPlace) -> String {
    let members: Vec<String> = place.view.members.iter().map(ToString::to_string).collect();
    let view = format!("view {} of {} (at least {})", place.view.number, members.join(", "), place.min_view);
    match report.shard(place) {
        None => format!("{view}, nobody answers for it"),
        Some(shard) => {
            let sessions = count(shard.sessions, "session");
            let behind = if shard.last == shard.commit { String::new() } else { format!(" of {}", shard.last) };
            format!("{}, {view}, committed {}{behind}, {sessions}", shard.state, shard.commit)
        }
    }
}

fn replica(report: &Report, place: &ShardPlace, info: &ReplicaInfo) -> String {
    let outside = if place.view.members.contains(&info.replica) { "" } else { "not in the view, " };
    if let Some(why) = report.away(&Topology::replica_name(info.replica)) {
        return format!("{outside}away: {why}");
    }
    match report.replica(info.replica) {
        None => format!("{outside}not known"),
        Some(status) => format!("{outside}{}", store(status)),
    }
}

fn store(status: &ReplicaStatus) -> String {
    let ReplicaStatus { state, used_bytes, limit_bytes, records, .. } = status;
    let mut words = format!("{state}; {} of {} MiB, {records} records", used_bytes >> 20, limit_bytes >> 20);
    if status.ssd_files > 0 {
        words.push_str(&format!(", SSD {} MiB, {} records", status.ssd_bytes >> 20, status.ssd_records));
    }
    for said in damage(status) {
        words.push_str(&format!("; {said}"));
    }
    words
}

/// What was found damaged, and when all was looked at last.
fn damage(status: &ReplicaStatus) -> Vec<String> {
    let mut said = Vec::new();
    if status.damaged > 0 {
        let lost = if status.lost > 0 { format!(", {} lost", status.lost) } else { String::new() };
        said.push(format!("{} found damaged, {} repaired{lost}", count(status.damaged, "record"), status.repaired));
    }
    if status.scrub_passes > 0 {
        said.push(format!("all read {} min ago", status.scrub_ended_secs / 60));
    }
    said
}

fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => String::new(),
        Some(rate) if rate > 0.0 && rate < 10.0 => format!(", {rate:.1}/s"),
        Some(rate) => format!(", {rate:.0}/s"),
    }
}

fn count(n: u64, what: &str) -> String {
    let many = if n == 1 { "" } else { "s" };
    format!("{n} {what}{many}")
}

/// Puts `words` behind `before`, on as many lines as they need.
fn wrapped(before: &str, words: &str, lines: &mut Vec<String>) {
    let mut indent = before.chars().count();
    let mut line = before.to_owned();
    if indent > WIDTH / 2 {
        lines.push(before.trim_end().to_owned());
        indent = before.chars().take_while(|c| *c == ' ').count() + 4;
        line = " ".repeat(indent);
    }
    let mut used = indent;
    // Reasons come from other processes: nothing of them may move the cursor.
    for word in words.split_whitespace() {
        let word: String = word.chars().filter(|c| !c.is_control()).collect();
        let len = word.chars().count();
        if used > indent && used + 1 + len > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            used = indent;
        }
        if used > indent {
            line.push(' ');
            used += 1;
        }
        line.push_str(&word);
        used += len;
    }
    lines.push(line.trim_end().to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_below_where_they_begin() {
        let mut lines = Vec::new();
        wrapped("  left  ", &"word ".repeat(30), &mut lines);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("  left  word word") && lines[0].chars().count() <= WIDTH, "{lines:?}");
        assert!(lines[1].starts_with("        word"), "{lines:?}");
        assert_eq!(lines.concat().matches("word").count(), 30);
    }

    #[test]
    fn what_leaves_no_room_has_its_words_on_the_next_line() {
        let mut lines = Vec::new();
        wrapped(&format!("  {}  ", "x".repeat(60)), "serving \u{1b}[2J", &mut lines);
        assert_eq!(lines, [format!("  {}", "x".repeat(60)), "      serving [2J".to_owned()]);
    }
}
