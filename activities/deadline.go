package activities

import "time"

// localTime returns a deadline as the clock of this worker shows it, at now. started is
// when the engine has given the attempt to this worker, by the clock by which the deadline
// was made: a worker whose clock is wrong has as long as any other.
func localTime(now, started, deadline time.Time) time.Time {
	return now.Add(deadline.Sub(started))
}

// lookFor is how long something is looked at that is past its deadline already: longer
// than it takes to call an API server steady, shorter than an activity has to wind up.
const lookFor = time.Minute

// lookUntil is localTime for something that is looked at even past its deadline: it may
// have come while no worker was there to see it.
func lookUntil(now, started, deadline time.Time) time.Time {
	if deadline.Before(started) {
		return now.Add(lookFor)
	}
	return localTime(now, started, deadline)
}
