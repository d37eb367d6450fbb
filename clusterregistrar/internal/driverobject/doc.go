// Package driverobject keeps the CSIDriver object of one driver as the driver's answers and the flags say, by server-side apply.
//
// Decisions are pure functions (features.go, fields.go, plan.go); they take the answers, the flags and the object, and return a plan.
// controller.go acts on plans, remove.go deletes the object. Only these use the API client and the driver.
//
// The package is the inside of the clusterregistrar component. Nothing else should use it: start the component with clusterregistrar.Run.
package driverobject
