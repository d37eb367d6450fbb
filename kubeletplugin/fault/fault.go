// Package fault names the places between two side effects of the node agent, so that a test can
// make the agent stop at one of them as if it had been killed there.
//
// In production the Hook is nil and a point costs one comparison. It is not a way to make calls
// fail: drivers and API servers have their own faults for that.
package fault

import "errors"

// ErrCrashed is what a test's Hook returns to stop the agent at a point. The caller stops
// at once, without any cleaning up: the next start has to cope with what is there.
var ErrCrashed = errors.New("stopped at a fault point")

// Point names a place. "before-x" and "after-x" enclose the side effect x.
type Point string

// The points in the order in which a volume passes them.
const (
	BeforeRaise          Point = "before-raise"
	AfterRaise           Point = "after-raise"
	BeforeStageRecord    Point = "before-stage-record"
	AfterStageRecord     Point = "after-stage-record"
	BeforeStage          Point = "before-stage"
	AfterStage           Point = "after-stage"
	BeforeTargetRecord   Point = "before-target-record"
	AfterTargetRecord    Point = "after-target-record"
	BeforePublish        Point = "before-publish"
	AfterPublish         Point = "after-publish"
	BeforeChangeGroup    Point = "before-change-group"
	AfterChangeGroup     Point = "after-change-group"
	BeforeExpandStart    Point = "before-expand-start"
	AfterExpandStart     Point = "after-expand-start"
	BeforeExpand         Point = "before-expand"
	AfterExpand          Point = "after-expand"
	BeforeExpandFinish   Point = "before-expand-finish"
	AfterExpandFinish    Point = "after-expand-finish"
	BeforeUnpublish      Point = "before-unpublish"
	AfterUnpublish       Point = "after-unpublish"
	BeforeTargetRemoval  Point = "before-target-removal"
	AfterTargetRemoval   Point = "after-target-removal"
	BeforeUnstage        Point = "before-unstage"
	AfterUnstage         Point = "after-unstage"
	BeforeStagingRemoval Point = "before-staging-removal"
	AfterStagingRemoval  Point = "after-staging-removal"
	BeforeInUseDrop      Point = "before-in-use-drop"
	AfterInUseDrop       Point = "after-in-use-drop"
)

// All lists every point, for tests that try each in turn.
func All() []Point {
	return []Point{
		BeforeRaise, AfterRaise,
		BeforeStageRecord, AfterStageRecord, BeforeStage, AfterStage,
		BeforeTargetRecord, AfterTargetRecord, BeforePublish, AfterPublish,
		BeforeChangeGroup, AfterChangeGroup,
		BeforeExpandStart, AfterExpandStart, BeforeExpand, AfterExpand, BeforeExpandFinish, AfterExpandFinish,
		BeforeUnpublish, AfterUnpublish, BeforeTargetRemoval, AfterTargetRemoval,
		BeforeUnstage, AfterUnstage, BeforeStagingRemoval, AfterStagingRemoval,
		BeforeInUseDrop, AfterInUseDrop,
	}
}

// Hook is asked at each point. A nil Hook lets everything pass.
type Hook func(Point) error

// At asks the hook whether to go on.
func (h Hook) At(p Point) error {
	if h == nil {
		return nil
	}
	return h(p)
}
