"""What would have become of each message if the past had been another one (SP-9).

A change file says what would have been different: routes that live longer, a crash that did not
happen, a subscription that was there. The rules decide again, node by node, and messages whose fate
changes are followed hop by hop.
"""
