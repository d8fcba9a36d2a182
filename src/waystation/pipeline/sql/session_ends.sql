-- What ended each session: a node, or the link while both nodes ran on; null while it is open.
WITH opened AS (
  SELECT
    s.node, s.incarnation, s.session, s.role, s.place, s.peer, s.closed_by,
    unix_micros(s.opened_at) AS opened, unix_micros(s.closed_at) AS closed,
    unix_micros(s.opened_at) - coalesce(o.ahead, 0) AS corrected_opened,
    unix_micros(s.closed_at) - coalesce(c.ahead, 0) AS corrected_closed
  FROM {session_history} AS s
  LEFT JOIN {corrections} AS o
    ON o.node = s.node AND o.hour = HOUR[unix_micros(s.opened_at)]
  LEFT JOIN {corrections} AS c
    ON c.node = s.node AND c.hour = HOUR[unix_micros(s.closed_at)]
),
again AS (
  SELECT
    *,
    min(opened) OVER (
      PARTITION BY node, coalesce(peer, concat('|', session)) ORDER BY opened DESC
      RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS back,
    coalesce(peer, place, session) AS peer_name
  FROM opened
),
-- The life of the peer in which a session was opened: the last that had begun by then.
in_line AS (
  SELECT
    c.node AS whose, unix_micros(c.from_time) - coalesce(k.ahead, 0) AS at, 0 AS turn,
    c.incarnation AS life, NULL AS asked
  FROM {coverage} AS c
  LEFT JOIN {corrections} AS k
    ON k.node = c.node AND k.hour = HOUR[unix_micros(c.from_time)]
  UNION ALL
  SELECT peer, corrected_opened + 20000, 1, NULL, struct(again.*) FROM again
),
beside AS (
  SELECT
    asked,
    last_value(life, true) OVER (
      PARTITION BY whose ORDER BY at, turn ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS peer_life
  FROM in_line
),
sides AS (
  SELECT
    asked.*, peer_life,
    struct(
      asked.node, asked.session, asked.role, asked.opened, asked.corrected_opened, asked.closed,
      asked.closed_by, asked.peer_name, asked.back
    ) AS side,
    least(asked.node, asked.peer) AS one, greatest(asked.node, asked.peer) AS other
  FROM beside
  WHERE asked IS NOT NULL
),
-- The record of the other side is the nearest one in time.
neighbours AS (
  SELECT
    *,
    lag(IF(node = one, side, NULL)) IGNORE NULLS OVER line AS one_before,
    lag(IF(node = other, side, NULL)) IGNORE NULLS OVER line AS other_before,
    lead(IF(node = one, side, NULL)) IGNORE NULLS OVER line AS one_after,
    lead(IF(node = other, side, NULL)) IGNORE NULLS OVER line AS other_after
  FROM sides
  WINDOW line AS (PARTITION BY one, other ORDER BY corrected_opened, node, session)
),
candidates AS (
  SELECT
    *,
    IF(node = one, other_before, one_before) AS former,
    IF(node = one, other_after, one_after) AS later
  FROM neighbours
),
nearest AS (
  SELECT
    *,
    CASE
      WHEN peer IS NULL OR peer = node THEN NULL
      WHEN former IS NULL THEN later
      WHEN later IS NULL THEN former
      WHEN (corrected_opened - former.corrected_opened, former.session)
        <= (later.corrected_opened - corrected_opened, later.session) THEN former
      ELSE later
    END AS found
  FROM candidates
),
paired AS (
  SELECT *, IF(abs(found.corrected_opened - corrected_opened) <= TWINS, found, NULL) AS twin
  FROM nearest
),
named AS (
  SELECT
    *,
    CASE
      WHEN twin IS NULL THEN side
      WHEN (twin.role <=> 'parent') <> (role <=> 'parent')
        THEN IF(twin.role <=> 'parent', twin, side)
      WHEN (twin.node, twin.session) < (node, session) THEN twin
      ELSE side
    END AS named
  FROM paired
),
ended AS (
  SELECT
    n.*, own, behind,
    own IS NOT NULL AND (
      n.closed_by IN ('stopped', 'restart')
      OR (own.stopped AND corrected_closed >= own.corrected - SLACK)
    ) AS by_own,
    behind IS NOT NULL AND NOT coalesce(corrected_closed < behind.corrected - SLACK, false) AS by_peer
  FROM named AS n
  LEFT JOIN (SELECT node, incarnation, struct(node_ends.*) AS own FROM {node_ends} AS node_ends) AS o
    ON o.node = n.node AND o.incarnation = n.incarnation
  LEFT JOIN
    (SELECT node, incarnation, struct(node_ends.*) AS behind FROM {node_ends} AS node_ends) AS p
    ON p.node = n.peer AND p.incarnation = n.peer_life
),
chosen AS (
  SELECT
    *,
    CASE
      WHEN coalesce(by_own, false) AND coalesce(by_peer, false)
        THEN IF(own.corrected <= behind.corrected, own, behind)
      WHEN by_own THEN own
      WHEN by_peer THEN behind
    END AS node_end
  FROM ended
)
SELECT
  node, session, role, peer, place, opened, closed, corrected_closed,
  CASE
    WHEN node_end IS NOT NULL THEN named_struct(
      'kind', IF(node_end.stopped, 'node_stopped', 'node_crashed'),
      'node', node_end.node,
      'key', concat_ws('|', node_end.node, node_end.incarnation),
      'peer', CAST(NULL AS STRING),
      'at', node_end.at, 'back', node_end.back,
      'corrected', node_end.corrected, 'corrected_back', node_end.corrected_back,
      'lost', true
    )
    WHEN closed IS NOT NULL THEN named_struct(
      'kind', 'link_lost',
      'node', named.node,
      'key', concat_ws('|', named.node, named.session, named.opened),
      'peer', named.peer_name,
      'at', coalesce(named.closed, closed), 'back', named.back,
      'corrected', corrected_closed,
      'corrected_back', chosen.back - (closed - corrected_closed),
      'lost', closed_by <=> 'lost' OR twin.closed_by <=> 'lost'
    )
  END AS ended
FROM chosen
