"""Reference for examples/ecg.lua: beats by the Pan-Tompkins method in NumPy and SciPy.

Prints one line for each row of spec/reference/ecg_reference.tsv, which is made with

    python3 spec/reference/ecg_reference.py examples/data/ecg.npy > spec/reference/ecg_reference.tsv

Filtering is SciPy's Butterworth design run forwards and backwards, peaks are scipy.signal.find_peaks', so that nothing
of the filtering or peak picking is shared with the example. The decision rules are those of the paper: J. Pan and W. J.
Tompkins, "A Real-Time QRS Detection Algorithm", IEEE Transactions on Biomedical Engineering, 1985. With --peaks the
sample numbers of the beats of the whole recording are printed instead.
"""
import sys

import numpy as np
from scipy import signal

RATE = 360


def envelope(millivolts):
    """Band-passed signal, its slope, and the moving integral of the squared slope."""
    sections = signal.butter(2, [5, 15], btype="bandpass", fs=RATE, output="sos")
    band = signal.sosfiltfilt(sections, millivolts)
    slope = np.convolve(band, np.array([1, 2, 0, -2, -1]) * RATE / 8, mode="same")
    width = int(0.150 * RATE)
    return band, slope, np.convolve(slope**2, np.ones(width) / width, mode="same")


def beats(millivolts):
    """Sample numbers of the beats."""
    band, slope, integral = envelope(millivolts)
    half = int(0.075 * RATE)
    peaks, _ = signal.find_peaks(integral, distance=int(0.2 * RATE))
    height = integral[peaks]
    steepest = np.array([np.abs(slope[max(p - half, 0):p + half + 1]).max() for p in peaks])
    tallest = np.array([np.abs(band[max(p - half, 0):p + half + 1]).max() for p in peaks])

    def learn(values):
        """First signal and noise levels: the median of the maxima of two seconds each, over the first ten."""
        windows = [values[(peaks >= t) & (peaks < t + 2 * RATE)] for t in range(0, 10 * RATE, 2 * RATE)
                   if t < len(millivolts)]
        level = np.median([w.max() if len(w) else 0 for w in windows])
        return level / 2, level / 16

    signal_i, noise_i = learn(height)
    signal_f, noise_f = learn(tallest)
    found, recent = [], []

    def accept(k, share):
        nonlocal signal_i, signal_f
        signal_i += share * (height[k] - signal_i)
        signal_f += share * (tallest[k] - signal_f)
        if found:
            recent.append(peaks[k] - peaks[found[-1]])
            del recent[:-8]
        found.append(k)

    for k in range(len(peaks)):
        # Search back: too long without a beat, take the best peak since over the second threshold.
        while found and recent:
            mean = np.mean(recent)
            if peaks[k] - peaks[found[-1]] < 1.66 * mean:
                break
            threshold_i = (noise_i + 0.25 * (signal_i - noise_i)) / 2
            threshold_f = (noise_f + 0.25 * (signal_f - noise_f)) / 2
            back = [j for j in range(found[-1] + 1, k)
                    if peaks[j] - peaks[found[-1]] > 0.36 * RATE and height[j] > threshold_i
                    and tallest[j] > threshold_f]
            if not back:
                break
            accept(max(back, key=lambda j: height[j]), 0.25)
        is_beat = (height[k] > noise_i + 0.25 * (signal_i - noise_i)
                   and tallest[k] > noise_f + 0.25 * (signal_f - noise_f))
        if is_beat and found and peaks[k] - peaks[found[-1]] < 0.36 * RATE:
            # A wave so soon after a beat is its T wave unless it is steep.
            is_beat = steepest[k] > 0.5 * steepest[found[-1]]
        if is_beat:
            accept(k, 0.125)
        else:
            noise_i += 0.125 * (height[k] - noise_i)
            noise_f += 0.125 * (tallest[k] - noise_f)
    return peaks[found]


def row(name, millivolts):
    found = beats(millivolts)
    rate = 60 * RATE * (len(found) - 1) / (found[-1] - found[0])
    print(f"{name}\t{len(found)}\t{rate:.2f}")


def main():
    values = np.load(sys.argv[1])
    millivolts = (values.astype(float) - 1024) / 200
    if "--peaks" in sys.argv:
        print("\n".join(str(p) for p in beats(millivolts)))
        return
    print("part\tbeats\tbpm")
    row("all", millivolts)
    for part in range(5):
        # first and last sample, counted from 1
        first, last = part * 21600 + 1, (part + 1) * 21600
        row(f"{first}-{last}", millivolts[first - 1:last])
    row("reversed", millivolts[::-1])


main()
