-- Each loss, with the last routing entry of its recipient before it, and when the next one began.
WITH steps AS (
  SELECT message_id, origin, sender, multicast_id, started, explode(lost) AS lost
  FROM {traces}
  WHERE lost_copies > 0
  UNION ALL
  SELECT message_id, origin, sender, multicast_id, started, lost FROM {gossip}
),
flat AS (
  SELECT
    message_id, origin, sender, multicast_id, unix_micros(started) AS started,
    lost.recipient, lost.reason, lost.node, lost.incarnation, lost.outcome, lost.out,
    lost.next_node, lost.onward, lost.internal,
    unix_micros(lost.at) AS at, unix_micros(lost.received_at) AS received,
    unix_micros(lost.expiry) AS expiry,
    regexp_replace(origin, '/[^/]*$', '') AS begun,
    lost.reason IN ('VANISHED', 'TRANSPORT_DOWN') AS over_session,
    lost.recipient IS NOT NULL
      AND (lost.reason = 'NO_ROUTE' OR (lost.reason = 'EXPIRED' AND lost.outcome = 'QUEUED'))
      AS by_name
  FROM steps
),
losses AS (
  SELECT
    flat.*,
    at - coalesce(c.ahead, 0) AS corrected,
    coalesce(h.ahead, 0) AS here,
    coalesce(t.ahead, 0) AS there
  FROM flat
  LEFT JOIN {corrections} AS c ON c.node = flat.node AND c.hour = HOUR[at]
  LEFT JOIN {corrections} AS h ON h.node = flat.node AND h.hour = HOUR[received]
  LEFT JOIN {corrections} AS t ON t.node = flat.begun AND t.hour = HOUR[received]
),
-- Entries and losses of one name in one line: the last entry before a loss is the one that counts.
in_line AS (
  SELECT
    node, participant AS name, unix_micros(valid_from) AS at, 0 AS turn, incarnation AS number,
    struct(
      incarnation, address, closed_by, unix_micros(valid_from) AS since,
      unix_micros(valid_to) AS until
    ) AS entry,
    NULL AS loss
  FROM {route_history}
  UNION ALL
  SELECT
    node, IF(over_session OR by_name, recipient, NULL), received, 1, 0, NULL, struct(losses.*)
  FROM losses
),
held AS (
  SELECT
    loss, name,
    last_value(entry, true) OVER (
      PARTITION BY node, coalesce(name, concat('|', loss.message_id)) ORDER BY at, turn, number
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS entry,
    first_value(entry, true) OVER (
      PARTITION BY node, coalesce(name, concat('|', loss.message_id)) ORDER BY at, turn, number
      ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    ) AS next
  FROM in_line
)
SELECT loss.*, entry, next.since AS later FROM held WHERE loss IS NOT NULL
