-- Each loss with the cause that explains it first (core/incidents.py is the reference).
WITH known AS (
  SELECT
    a.*, o.own, e.entry_end,
    coalesce(by_name_found, by_peer, behind) AS over,
    a.entry IS NOT NULL AND (a.entry.until IS NULL OR a.entry.until > received) AS held
  FROM {asked} AS a
  LEFT JOIN (SELECT node, incarnation, struct(n.*) AS own FROM {node_ends} AS n) AS o
    ON o.node = a.node AND o.incarnation = a.incarnation
  LEFT JOIN (SELECT node, incarnation, struct(n.*) AS entry_end FROM {node_ends} AS n) AS e
    ON e.node = a.node AND e.incarnation = a.entry.incarnation
),
ends AS (
  SELECT
    *,
    named_struct(
      'kind', IF(own.stopped, 'node_stopped', 'node_crashed'), 'node', own.node,
      'key', concat_ws('|', own.node, own.incarnation), 'peer', CAST(NULL AS STRING),
      'at', own.at, 'back', own.back, 'corrected', own.corrected,
      'corrected_back', own.corrected_back, 'lost', true
    ) AS own_ended,
    named_struct(
      'kind', IF(entry_end.stopped, 'node_stopped', 'node_crashed'), 'node', entry_end.node,
      'key', concat_ws('|', entry_end.node, entry_end.incarnation), 'peer', CAST(NULL AS STRING),
      'at', entry_end.at, 'back', entry_end.back, 'corrected', entry_end.corrected,
      'corrected_back', entry_end.corrected_back, 'lost', true
    ) AS entry_node_ended,
    EXPLAINS[over] AS over_explains,
    EXPLAINS[by_name_found] AS name_explains,
    EXPLAINS[behind] AS behind_explains
  FROM known
),
ended AS (
  SELECT
    *,
    CASE
      WHEN reason = 'VANISHED' AND outcome = 'QUEUED' AND own IS NOT NULL THEN own_ended
      WHEN over_session AND over_explains THEN over.ended
      WHEN NOT by_name THEN NULL
      WHEN name_explains THEN by_name_found.ended
      WHEN entry IS NULL THEN NULL
      WHEN held THEN IF(behind_explains, behind.ended, NULL)
      WHEN entry_end IS NOT NULL AND (
        entry.closed_by IN ('stopped', 'restart')
        OR (
          entry.closed_by = 'removed' AND entry_end.stopped AND entry.until >= entry_end.at - SLACK
        )
      ) THEN entry_node_ended
      WHEN behind.ended IS NOT NULL AND (
        abs(entry.until - behind.closed) <= TOGETHER
        OR (entry.until > behind.closed AND entry.closed_by = 'expired')
      ) THEN behind.ended
    END AS end
  FROM ends
),
clocks AS (SELECT * FROM {clocks}),
wrong AS (
  SELECT
    e.*,
    CASE
      WHEN reason = 'EXPIRED' AND outcome = 'DROPPED' AND expiry IS NOT NULL
        AND begun IS NOT NULL AND received - here + there < expiry
        AND greatest(abs(here), abs(there)) > OFF
        THEN IF(abs(there) > abs(here), begun, e.node)
    END AS wrong_clock
  FROM ended AS e
),
judged AS (
  SELECT
    w.*, c.started AS clock_since, c.ended AS clock_until, c.cause AS clock_text,
    CASE
      WHEN end IS NOT NULL THEN end.kind
      WHEN by_name AND entry IS NULL THEN 'never_registered'
      WHEN by_name AND NOT held AND entry.closed_by = 'expired' THEN 'route_expired'
      WHEN by_name AND NOT held THEN 'entry'
      WHEN c.started IS NOT NULL THEN 'clock'
      WHEN reason = 'QUEUE_FULL' THEN 'slow_receiver'
      WHEN reason = 'NO_SUBSCRIBER' THEN 'no_subscriber'
      WHEN reason = 'HOP_LIMIT' THEN 'loop'
      WHEN reason = 'REFUSED' THEN 'refused'
      ELSE 'other'
    END AS what
  FROM wrong AS w
  LEFT JOIN clocks AS c
    ON c.node = w.wrong_clock AND c.hour = HOUR[received]
),
-- Losses of one receiver or topic that follow each other closely are one incident.
grouped AS (
  SELECT
    *,
    CASE
      WHEN what = 'slow_receiver'
        THEN concat_ws('|', node, IF(recipient LIKE 'subscriber-%', '', coalesce(recipient, '')))
      WHEN what = 'no_subscriber' THEN coalesce(multicast_id, '')
    END AS joined_by
  FROM judged
),
stepped AS (
  SELECT
    *,
    lag(at) OVER (
      PARTITION BY what, coalesce(joined_by, concat('|', message_id))
      ORDER BY at, message_id, coalesce(origin, ''), coalesce(recipient, '')
    ) AS before
  FROM grouped
),
joined AS (
  SELECT
    *,
    last_value(IF(before IS NULL OR at - before >= JOINED, at, NULL), true) OVER (
      PARTITION BY what, coalesce(joined_by, concat('|', message_id))
      ORDER BY at, message_id, coalesce(origin, ''), coalesce(recipient, '')
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS began
  FROM stepped
),
told AS (
  SELECT
    *,
    IF(what = 'entry', 'other', what) AS kind,
    CASE
      WHEN end IS NOT NULL THEN end.key
      WHEN what = 'never_registered' THEN concat_ws('|', node, recipient)
      WHEN what IN ('route_expired', 'entry') THEN concat_ws('|', node, recipient, entry.until)
      WHEN what = 'clock' THEN concat_ws('|', wrong_clock, clock_since)
      WHEN joined_by IS NOT NULL THEN concat_ws('|', joined_by, began)
      WHEN what = 'loop' THEN concat_ws('|', coalesce(origin, ''), onward)
      WHEN what = 'refused' THEN concat_ws('|', node, coalesce(recipient, ''))
      ELSE concat_ws('|', node, reason, HOUR[at])
    END AS key,
    CASE
      WHEN end IS NOT NULL THEN end.node
      WHEN what = 'clock' THEN wrong_clock
      WHEN what = 'no_subscriber' THEN NULL
      WHEN what = 'loop' THEN coalesce(nullif(begun, ''), node)
      ELSE node
    END AS incident_node,
    CASE
      WHEN end IS NOT NULL THEN end.at
      WHEN what IN ('route_expired', 'entry') THEN entry.until
      WHEN what = 'clock' THEN clock_since
      WHEN joined_by IS NOT NULL THEN began
      ELSE at
    END AS incident_started,
    CASE
      WHEN end IS NOT NULL THEN end.back
      WHEN what IN ('never_registered', 'route_expired', 'entry') THEN later
      WHEN what = 'clock' THEN clock_until
    END AS incident_ended,
    CASE
      WHEN end.kind = 'link_lost'
        THEN concat('the session of ', end.node, ' with ', end.peer, ' broke')
      WHEN end.kind = 'node_stopped' THEN concat(end.node, ' was stopped')
      WHEN end IS NOT NULL THEN concat(end.node, ' crashed')
    END AS end_text
  FROM joined
)
SELECT
  message_id, origin, recipient, at, received, node, next_node, sender, multicast_id, reason,
  internal, day, kind, incident_node, incident_started, incident_ended,
  substring(sha2(concat_ws('|', kind, key), 256), 1, 16) AS incident_id,
  CASE
    WHEN end IS NOT NULL THEN concat(
      end_text, ' ',
      IF(
        corrected < end.corrected,
        concat(LASTED[end.corrected - corrected], ' after'),
        concat(LASTED[corrected - end.corrected], ' before')
      ),
      CASE
        WHEN end.corrected_back IS NULL OR end.corrected_back <= corrected THEN ''
        WHEN end.kind = 'link_lost'
          THEN concat('; a new one opened ', LASTED[end.corrected_back - corrected], ' after')
        ELSE concat(
          '; ', end.node, ' was back ', LASTED[end.corrected_back - corrected], ' after'
        )
      END
    )
    WHEN what = 'never_registered' AND later IS NULL
      THEN concat(recipient, ' was never known at ', node)
    WHEN what = 'never_registered' THEN concat(
      recipient, ' was not known at ', node, ' yet; it came ', LASTED[later - at], ' after'
    )
    WHEN what = 'route_expired' THEN concat(
      'its route had expired ', LASTED[received - entry.until], ' before',
      IF(later IS NULL, '', concat('; a new one came ', LASTED[later - received], ' after'))
    )
    WHEN what = 'entry' THEN concat(
      recipient, ' had left ', LASTED[received - entry.until], ' before',
      IF(later IS NULL, '', concat('; it was back ', LASTED[later - received], ' after'))
    )
    WHEN what = 'clock' THEN concat(clock_text, '; by the clock of its sender it had not expired')
    WHEN reason = 'VANISHED' AND next_node IS NOT NULL
      THEN concat('it left for ', next_node, ', and did not arrive')
    WHEN reason = 'TRANSPORT_DOWN' AND next_node IS NOT NULL
      THEN concat('there was no session with ', next_node)
    WHEN reason = 'QUEUE_FULL' AND recipient IS NOT NULL
      THEN concat(recipient, ' had no room for it')
    WHEN reason = 'EXPIRED' AND expiry <= received
      THEN concat('it had expired ', LASTED[received - expiry], ' before it came')
    WHEN reason = 'EXPIRED' AND expiry IS NOT NULL
      THEN concat('it waited for ', LASTED[at - received], ' and expired')
    ELSE PLAINLY[reason]
  END AS cause,
  CASE
    WHEN end.kind = 'link_lost' THEN concat(
      'the link of ', end.node, ' with ', end.peer, ' broke',
      IF(end.back IS NULL, '', concat(' and was back ', LASTED[end.back - end.at], ' later'))
    )
    WHEN end IS NOT NULL THEN concat(
      end_text,
      IF(end.back IS NULL, '', concat(' and was back ', LASTED[end.back - end.at], ' later'))
    )
    WHEN what = 'never_registered' THEN concat(recipient, ' was not known at ', node)
    WHEN what IN ('route_expired', 'entry') THEN concat(
      IF(
        what = 'entry',
        concat(recipient, ' left ', node),
        concat('the route to ', recipient, ' at ', node, ' expired')
      ),
      IF(later IS NULL, '', concat(' and was back ', LASTED[later - entry.until], ' later'))
    )
    WHEN what = 'clock' THEN clock_text
    WHEN what = 'slow_receiver' THEN concat(
      IF(joined_by LIKE '%|', 'a subscriber', recipient), ' at ', node, ' had no room'
    )
    WHEN what = 'no_subscriber' THEN concat('nobody subscribed to ', coalesce(multicast_id, ''))
    WHEN what = 'loop' THEN concat('what began at ', incident_node, ' went in a loop')
    WHEN what = 'refused'
      THEN concat(node, ' refused what came for ', coalesce(recipient, 'others'))
    ELSE concat(reason, ' at ', node)
  END AS incident_cause
FROM told
