/* This process's own threads, which work beside the one that asks for them, also while it does something else. */
#ifndef SLUICE_TEAM_H
#define SLUICE_TEAM_H

typedef void (*team_fn)(void *data);

/* Returns whether the team is the caller's from now on; else it is somebody else's. */
int sluice_take_team(void);

/* Has so many other threads do `work`, each as soon as it comes; returns at once. */
void sluice_begin_team(team_fn work, void *data, int num_threads);

/* Nobody begins `work` any more, and who has begun has ended; the team is nobody's then. */
void sluice_end_team(void);

#endif
