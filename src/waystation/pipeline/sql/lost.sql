-- Each loss with how far the clocks were off, and what may explain it.
WITH steps AS (
  SELECT message_id, origin, sender, multicast_id, day, explode(lost) AS lost
  FROM {traces}
  WHERE lost_copies > 0
  UNION ALL
  SELECT message_id, origin, sender, multicast_id, day, lost FROM {gossip}
),
flat AS (
  SELECT
    message_id, origin, sender, multicast_id, day,
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
)
SELECT
  flat.*,
  at - coalesce(c.ahead, 0) AS corrected,
  coalesce(h.ahead, 0) AS here,
  coalesce(t.ahead, 0) AS there
FROM flat
LEFT JOIN {corrections} AS c ON c.node = flat.node AND c.hour = HOUR[at]
LEFT JOIN {corrections} AS h ON h.node = flat.node AND h.hour = HOUR[received]
LEFT JOIN {corrections} AS t ON t.node = flat.begun AND t.hour = HOUR[received]
