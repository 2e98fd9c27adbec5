"""A daemon whose journals are kept by several nodes: it serves those that it leads.

serve          puts it together, and takes it apart
kept_journal   one journal: follows, leads, serves while it leads
gate           what its answers wait for while it leads
front          the ports for clients, and who answers there for which journal
sets           which nodes keep which journal, and how a node is set up
"""
