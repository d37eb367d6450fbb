package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

// kitErrors are the array's statuses, and the errors of the kit that say the same. The kit turns those into gRPC codes. A status 404 is none of them: it may be that of a wrong address.
func kitErrors() map[int]error {
	return map[int]error{
		http.StatusBadRequest:          driverkit.ErrInvalid,
		http.StatusUnauthorized:        driverkit.ErrUnauthenticated,
		http.StatusForbidden:           driverkit.ErrDenied,
		http.StatusConflict:            driverkit.ErrExists,
		http.StatusLocked:              driverkit.ErrInUse,
		http.StatusTooManyRequests:     driverkit.ErrExhausted, // A node has all the volumes that it may have.
		http.StatusInsufficientStorage: driverkit.ErrExhausted,
	}
}

// kitError is the one place where errors of the array become errors of the kit. nil stays nil.
func kitError(err error) error {
	if err == nil {
		return nil
	}
	answer, ok := errors.AsType[*array.Error](err)
	if !ok {
		return fmt.Errorf("call the array: %w: %w", driverkit.ErrUnavailable, err) // The outcome is unknown: the CO calls again.
	}
	if answer.Missing != "" {
		return fmt.Errorf("%w: %w", driverkit.NotFound("object of the array", answer.Missing), err)
	}
	if known := kitErrors()[answer.Status]; known != nil {
		return fmt.Errorf("%w: %w", known, err)
	}
	return err
}
