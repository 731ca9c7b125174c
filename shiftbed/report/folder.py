"""What lies in a folder of results beside a sweep's records: where the demo puts it, and figures and pages find it."""

from shiftbed.accuracy.kept import ACCURACY as ACCURACY
from shiftbed.accuracy.kept import PREDICTIONS as PREDICTIONS
from shiftbed.accuracy.kept import predictions as predictions
from shiftbed.shift.kept import MATRIX as MATRIX
from shiftbed.shift.kept import SHIFT as SHIFT
from shiftbed.shift.kept import shift_points as shift_points
from shiftbed.training.store import read_json as read_json
from shiftbed.training.store import write_json as write_json
