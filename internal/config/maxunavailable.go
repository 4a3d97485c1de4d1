package config

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxUnavailableWorkers returns how many of that many workers may be upgraded at once:
// maxUnavailable as a number, or as a percentage rounded up, but at least 1.
func (u Upgrade) MaxUnavailableWorkers(workers int) int {
	amount, percent, err := parseMaxUnavailable(u.MaxUnavailable)
	if err != nil {
		return 1 // not valid, as Validate reports
	}
	if percent {
		amount = (workers*amount + 99) / 100
	}
	return max(1, amount)
}

// parseMaxUnavailable parses "3" or "25%".
func parseMaxUnavailable(text string) (amount int, percent bool, err error) {
	digits, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	amount, err = strconv.Atoi(digits)
	switch {
	case err != nil || amount < 1:
		return 0, false, fmt.Errorf("must be a number of workers from 1, or a percentage such as 25%%, not %q", shorten(text))
	case percent && amount > 100:
		return 0, false, fmt.Errorf("a percentage must be from 1%% to 100%%, not %q", shorten(text))
	}
	return amount, percent, nil
}
